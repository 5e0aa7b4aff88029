// Words of a text -> the text on the page, each word a stop for the arrow keys.

import { element } from "./dom.js";

/** Write `text` into `box`; `dress(word, number)` gives the properties of a word's element. */
export function drawWords(box, text, words, dress) {
  const pieces = [];
  let done = 0;
  words.forEach((word, number) => {
    const shown = text.slice(word.start, word.end);
    pieces.push(text.slice(done, word.start));
    pieces.push(element("span", { className: "word", tabIndex: -1, ...dress(word, number) }, shown));
    done = word.end;
  });
  box.replaceChildren(...pieces, text.slice(done));
  const first = wordElements(box)[0];
  if (first) first.tabIndex = 0;
}

/** The elements of the words, in their order. */
export const wordElements = (box) => [...box.querySelectorAll(".word")];

/** Put the focus on a word. The tab key then comes back to it. */
export function focusWord(box, number) {
  const all = wordElements(box);
  const word = all[Math.min(number, all.length - 1)];
  if (!word) return;
  for (const other of all) other.tabIndex = -1;
  word.tabIndex = 0;
  word.focus();
}

/** Arrow keys walk from word to word; a click, Enter or space calls `choose(number)`. */
export function walkWords(box, choose) {
  const numberOf = (target) => wordElements(box).indexOf(target.closest(".word"));
  box.addEventListener("click", ({ target }) => {
    const number = numberOf(target);
    if (number < 0) return;
    focusWord(box, number);
    choose(number);
  });
  box.addEventListener("keydown", (event) => {
    const number = numberOf(event.target);
    if (number < 0) return;
    if (event.key === "Enter" || event.key === " ") choose(number);
    else if (event.key in STEPS) focusWord(box, STEPS[event.key](number, box, event.target));
    else return;
    event.preventDefault();
  });
}

const isRightToLeft = (word) => getComputedStyle(word.parentElement).direction === "rtl";
const forward = (number) => number + 1;
const back = (number) => Math.max(0, number - 1);
const STEPS = {
  ArrowRight: (number, box, word) => (isRightToLeft(word) ? back(number) : forward(number)),
  ArrowLeft: (number, box, word) => (isRightToLeft(word) ? forward(number) : back(number)),
  ArrowDown: (number, box, word) => onLine(box, word, 1) ?? number,
  ArrowUp: (number, box, word) => onLine(box, word, -1) ?? number,
  Home: () => 0,
  End: () => Infinity,
};

/** The word of the next line that way which is nearest to above or below this one. */
function onLine(box, word, way) {
  const place = (one) => one.getClientRects()[0];
  const here = place(word);
  let best = null;
  wordElements(box).forEach((other, number) => {
    const there = place(other);
    const lines = Math.round(((there.bottom - here.bottom) * way) / here.height);
    if (lines < 1) return;
    const cost = lines * 1e6 + Math.abs(there.left + there.width / 2 - here.left - here.width / 2);
    if (best === null || cost < best.cost) best = { cost, number };
  });
  return best?.number;
}
