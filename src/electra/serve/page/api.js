// A path and a request as plain data -> the server's results, or an ApiError that can be shown to people.

const KEY = "electra.key";

export class ApiError extends Error {
  /** `status` is 0 if there was no answer at all. */
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  /** Whether the same request may succeed later. */
  get isPassing() {
    return this.status === 0 || this.status === 408 || this.status >= 500;
  }
}

/** What the model is called, what it can do, and the server's limits. */
export const describeModel = (signal) => request("model", { signal });

/** The results for `body`, in the order of its texts. */
export async function ask(ability, body, signal) {
  const answer = await request(ability, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return answer.results;
}

async function request(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await send(path, options, key);
    if (response.status !== 401) return read(response);
    // Requests run side by side: another may have got a new key since this one was sent.
    if (sessionStorage.getItem(KEY) === key) await askForKey(key !== null);
  }
}

async function send(path, options, key) {
  const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "The server does not answer. Is it still running?");
  }
}

async function read(response) {
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) return body;
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  throw new ApiError(response.status, inWords(response.status, body?.error, retryAfter));
}

function inWords(status, error, retryAfter) {
  const reason = error?.message ?? `code ${status} and no explanation`;
  const wait = retryAfter ? ` It asks to wait ${retryAfter} s.` : "";
  if (status === 503) return `The server cannot answer now: ${reason}.${wait}`;
  if (status === 408) return "The text took too long to reach the server.";
  if (status === 413) return "The text is too large for this server: shorten it.";
  return `The server refused: ${reason}.`;
}

let asking = null;

/** One dialog at a time, whoever asks. */
function askForKey(wasRefused) {
  asking ??= keyFromDialog(wasRefused).finally(() => (asking = null));
  return asking;
}

function keyFromDialog(wasRefused) {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key-value");
  document.getElementById("key-refused").hidden = !wasRefused;
  field.value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve, reject) => {
    dialog.addEventListener("close", decide, { once: true });
    function decide() {
      if (dialog.returnValue !== "use") return reject(new ApiError(401, "The server wants a key."));
      sessionStorage.setItem(KEY, field.value);
      return resolve();
    }
  });
}
