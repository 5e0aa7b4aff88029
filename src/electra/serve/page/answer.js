// A question and a text -> the part of the text that answers it.

import { ask } from "./api.js";
import { element, onSubmit, parts, percent } from "./dom.js";
import { newest } from "./newest.js";
import { located } from "./text.js";

const part = parts("answer");

export function start() {
  const run = newest("answer");
  onSubmit(part("form"), () => {
    const [question, context] = [part("question").value, part("context").value];
    if (!question.trim()) return part("question").focus();
    if (!context.trim()) return part("context").focus();
    const body = { questions: [question], contexts: [context] };
    return run((signal) => ask("answer", body, signal), ([result]) => show(context, result));
  });
}

function show(context, result) {
  const isThere = result.text !== "";
  const headline = isThere ? result.text : "The text seems not to answer this.";
  part("result").replaceChildren(
    element(
      "div",
      { className: "card" },
      element("p", { className: "headline", dir: "auto" }, headline),
      element("p", { className: "quiet" }, certainty(result, isThere)),
      ...(isThere ? [inContext(context, result)] : []),
    ),
  );
}

function certainty({ score, no_answer: none }, isThere) {
  const words = isThere ? [`Probability of this answer: ${percent(score, 1)}`] : [];
  const that = isThere ? "that" : "Probability that";
  if (none !== null) words.push(`${that} there is none: ${percent(none, 1)}`);
  return words.join("; ");
}

function inContext(context, result) {
  const [{ start, end }] = located(context, [result]);
  const [before, found, after] = [context.slice(0, start), context.slice(start, end), context.slice(end)];
  return element("p", { className: "reading", dir: "auto" }, before, element("mark", {}, found), after);
}
