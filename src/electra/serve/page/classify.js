// A text or a pair -> its class, its labels or its value.

import { ask } from "./api.js";
import { bars, element, onSubmit, parts } from "./dom.js";
import { newest } from "./newest.js";

const MOST_NAMED = 12;

const part = parts("classify");

export function start({ labels }) {
  const run = newest("classify");
  const names = labels.slice(0, MOST_NAMED).join(", ") + (labels.length > MOST_NAMED ? ", …" : "");
  part("lead").textContent = labels.length
    ? `The model knows ${labels.length} labels: ${names}.`
    : "The model gives a text, or a pair of texts, a value.";
  onSubmit(part("form"), () => {
    const [text, pair] = [part("text").value, part("pair").value];
    if (!text.trim()) return part("text").focus();
    const pairs = pair.trim() ? [pair] : null;
    return run((signal) => ask("classify", { texts: [text], pairs }, signal), show);
  });
}

function show([result]) {
  const shares = Object.entries(result.probabilities ?? {}).sort(([, one], [, other]) => other - one);
  const headline = element("p", { className: "headline", dir: "auto" }, inWords(result));
  const drawn = shares.length ? [headline, bars(shares)] : [headline];
  part("result").replaceChildren(element("div", { className: "card" }, ...drawn));
}

function inWords({ label, labels, value }) {
  if (labels) return labels.join(", ") || "None of the labels is more probable than not.";
  if (typeof value === "number") return value.toFixed(3);
  return label ?? "There is no word in it that could be judged.";
}
