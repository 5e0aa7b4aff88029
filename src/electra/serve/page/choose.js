// A question and some choices -> how probable each of them is.

import { ask } from "./api.js";
import { bars, element, onSubmit, parts } from "./dom.js";
import { newest } from "./newest.js";

const part = parts("choose");

export function start() {
  const run = newest("choose");
  onSubmit(part("form"), () => {
    const choices = part("choices").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!part("question").value.trim()) return part("question").focus();
    if (choices.length < 2) {
      part("result").replaceChildren(element("p", { className: "quiet" }, "Write at least two choices."));
      return part("choices").focus();
    }
    const body = { questions: [part("question").value], choices: [choices] };
    return run((signal) => ask("choose", body, signal), ([result]) => show(choices, result));
  });
}

function show(choices, { text, probabilities }) {
  const shares = choices.map((choice, number) => [choice, probabilities[number]]);
  const headline = element("p", { className: "headline", dir: "auto" }, text);
  part("result").replaceChildren(element("div", { className: "card" }, headline, bars(shares)));
}
