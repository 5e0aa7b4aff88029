// Questions asked one after the other -> the answer to the newest only, or its error in words.

import { ApiError } from "./api.js";
import { element } from "./dom.js";

/**
 * `newest("detect")` is a function `run(work, show)` for the panel of that name. It calls `show` with what
 * `work(signal)` gives. A later call aborts an earlier one, of which nothing more is seen.
 */
export function newest(panel) {
  const notice = document.getElementById(`${panel}-notice`);
  const busy = document.getElementById(panel) ?? document.body;
  let current = new AbortController();

  async function run(work, show) {
    current.abort();
    const own = new AbortController();
    current = own;
    notice.hidden = true;
    busy.setAttribute("aria-busy", "true");
    try {
      const answer = await work(own.signal);
      if (!own.signal.aborted) show(answer);
    } catch (error) {
      if (own.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      explain(notice, error, () => run(work, show));
    } finally {
      if (current === own) busy.removeAttribute("aria-busy");
    }
  }

  /** Forget what is under way, and what went wrong before. */
  run.stop = () => {
    current.abort();
    notice.hidden = true;
    busy.removeAttribute("aria-busy");
  };
  return run;
}

function explain(notice, error, again) {
  const canRetry = error.isPassing || error.status === 401;
  const button = element("button", { type: "button", className: "small", onclick: again }, "Try again");
  notice.replaceChildren(element("span", {}, error.message), ...(canRetry ? [button] : []));
  notice.hidden = false;
}
