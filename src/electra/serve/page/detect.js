// A text, while it is typed -> each word coloured by how probably it was replaced.

import { alternatives } from "./alternatives.js";
import { ask } from "./api.js";
import { parts, percent } from "./dom.js";
import { anExample } from "./examples.js";
import { newest } from "./newest.js";
import { wordsOf } from "./text.js";
import { drawWords, focusWord, walkWords, wordElements } from "./words.js";

const PAUSE = 250; // Milliseconds without a key before the server is asked.
const LOOKS_REPLACED = 0.5;

const part = parts("detect");

export function start({ abilities }) {
  const canFill = abilities.includes("fill");
  const run = newest("detect");
  const [field, box] = [part("text"), part("words")];
  let shown = { text: "", words: [] };
  let timer;

  function judge() {
    clearTimeout(timer);
    const text = field.value;
    if (text.trim()) {
      run((signal) => ask("detect", { texts: [text] }, signal), show);
    } else {
      run.stop();
      show([{ text: "", tokens: [] }]);
    }
  }

  function show([{ text, tokens }]) {
    others.close();
    const focused = wordElements(box).indexOf(document.activeElement);
    const words = wordsOf(text, tokens).map((word) => ({ ...word, suspicion: suspicionOf(word) }));
    shown = { text, words };
    drawWords(box, text, words, (word) => dress(text, word, canFill));
    wordElements(box).forEach((one, at) => one.style.setProperty("--suspicion", words[at].suspicion));
    part("empty").hidden = words.length > 0;
    part("summary").textContent = summary(text, words);
    part("detail").hidden = true;
    if (focused >= 0) focusWord(box, focused);
  }

  const others = alternatives(box, (text) => {
    field.value = text;
    judge();
  });

  function showDetail({ target }) {
    const word = shown.words[wordElements(box).indexOf(target.closest(".word"))];
    if (!word) return;
    part("detail").textContent = detail(shown.text, word);
    part("detail").hidden = false;
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(judge, PAUSE);
  });
  part("example").addEventListener("click", () => {
    field.value = anExample();
    judge();
  });
  box.addEventListener("pointerover", showDetail);
  box.addEventListener("focusin", showDetail);
  walkWords(box, (number) => canFill && others.open(shown.text, shown.words[number], number));
  part("how").textContent =
    "Point at a word, or walk with the arrow keys, for its probability." +
    (canFill ? " Click it, or press Enter, for what the generator would write there." : "");
}

/** A word is as suspicious as its most suspicious token. */
const suspicionOf = ({ tokens }) => Math.max(...tokens.map(({ replaced }) => replaced));

function dress(text, { start, end, suspicion }, canFill) {
  const looksReplaced = suspicion >= LOOKS_REPLACED;
  return {
    className: looksReplaced ? "word judged suspect" : "word judged",
    role: canFill ? "button" : "img",
    "aria-label": `${text.slice(start, end)}, ${percent(suspicion)}`,
    "data-percent": looksReplaced ? percent(suspicion) : "",
  };
}

function detail(text, { start, end, suspicion, tokens }) {
  const whole = `“${text.slice(start, end)}”: replaced with probability ${percent(suspicion, 1)}`;
  const seen = tokens.filter((token) => token.text);
  if (seen.length < 2) return whole;
  return `${whole} (${seen.map((token) => `${token.text} ${percent(token.replaced, 1)}`).join(", ")})`;
}

function summary(text, words) {
  if (!words.length) return "";
  const count = words.filter(({ suspicion }) => suspicion >= LOOKS_REPLACED).length;
  const all = `${words.length} ${words.length === 1 ? "word" : "words"}`;
  if (count > 0) return `${count} of ${all} ${count === 1 ? "looks" : "look"} replaced.`;
  // A young model is sure of nothing; the order in which it suspects words still says something.
  const suspicion = Math.max(...words.map((word) => word.suspicion));
  const { start, end } = words.find((word) => word.suspicion === suspicion);
  const first = `“${text.slice(start, end)}”, ${percent(suspicion)}`;
  return `None of ${all} looks replaced; most suspicious is ${first}.`;
}
