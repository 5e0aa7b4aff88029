// A text and some options -> which of them looks least replaced in a sentence behind the text.

import { ask } from "./api.js";
import { bars, element, onSubmit, parts } from "./dom.js";
import { newest } from "./newest.js";

const part = parts("options");
const PLACE = "{}";

export function start() {
  const run = newest("options");
  onSubmit(part("form"), () => {
    const options = part("list").value.split("\n").map((line) => line.trim()).filter(Boolean);
    const [text, template] = [part("text").value, part("template").value];
    if (!text.trim()) return part("text").focus();
    if (template.split(PLACE).length !== 2) return complain("template", `Write ${PLACE} once in the sentence.`);
    if (options.length < 2) return complain("list", "Write at least two options.");
    const body = { texts: [text], options, template };
    return run((signal) => ask("choose", body, signal), ([result]) => show(template, options, result));
  });
}

function complain(field, words) {
  part("result").replaceChildren(element("p", { className: "quiet" }, words));
  part(field).focus();
}

function show(template, options, { text, probabilities }) {
  if (text === null) return complain("text", "There is no word in it that could be judged.");
  const shares = options.map((option, number) => [option, probabilities[number]]);
  const sentence = template.replace("{text}", "…").replace(PLACE, () => text);
  const headline = element("p", { className: "headline", dir: "auto" }, sentence.trim());
  part("result").replaceChildren(element("div", { className: "card" }, headline, bars(shares)));
}
