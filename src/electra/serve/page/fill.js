// A text with gaps -> the generator's candidates for each.

import { ask } from "./api.js";
import { bars, element, onSubmit, parts } from "./dom.js";
import { newest } from "./newest.js";
import { located, MASK, readable } from "./text.js";

const HOW_MANY = 5;
const AROUND = 40; // Characters of the text that are shown on each side of a gap.
const GAP = "____";

const part = parts("fill");

export function start() {
  const run = newest("fill");
  const field = part("text");

  onSubmit(part("form"), () => {
    const text = field.value;
    if (text.includes(MASK)) {
      run((signal) => ask("fill", { texts: [text], top: HOW_MANY }, signal), show);
    } else {
      run.stop();
      say(`There is no gap in the text: put ${MASK} where a word is to be guessed.`);
    }
  });
  part("gap").addEventListener("click", () => {
    field.setRangeText(MASK, field.selectionStart, field.selectionEnd, "end");
    field.focus();
  });
}

function show([{ text, masks }]) {
  const cards = located(text, masks).map(({ start, end, candidates }) => {
    const before = text.slice(0, start).replaceAll(MASK, GAP).slice(-AROUND);
    const after = text.slice(end).replaceAll(MASK, GAP).slice(0, AROUND);
    const rows = readable(candidates).map(({ shown, probability }) => [shown, probability]);
    return element(
      "div",
      { className: "card" },
      element("p", { dir: "auto", className: "quiet" }, before, element("mark", {}, GAP), after),
      bars(rows),
    );
  });
  part("result").replaceChildren(...cards);
}

const say = (words) => part("result").replaceChildren(element("p", { className: "empty" }, words));
