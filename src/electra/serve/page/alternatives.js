// A word of a text -> what the generator would write there, to choose from.

import { ask } from "./api.js";
import { element, parts, percent } from "./dom.js";
import { newest } from "./newest.js";
import { MASK, readable, withInstead } from "./text.js";
import { focusWord, wordElements } from "./words.js";

const HOW_MANY = 6;
const GAP = 6; // Pixels between a word and the list under it.

const box = document.getElementById("detect-alternatives");
const part = parts("detect-alternatives");

/** A list that opens under a word of `words`; `choose` gets the text with the chosen word in it. */
export function alternatives(words, choose) {
  const run = newest("detect-alternatives");
  let number = null; // Of the word that it is open for.

  function open(text, word, at) {
    number = at;
    const old = element("b", { dir: "auto" }, text.slice(word.start, word.end));
    part("title").replaceChildren("Instead of ", old);
    part("list").replaceChildren(element("li", { className: "empty" }, "Asking the generator…"));
    box.hidden = false;
    place(wordElements(words)[at]);
    run((signal) => candidatesAt(text, word, signal), (found) => list(found, text, word));
  }

  function list(found, text, word) {
    const items = found.map((candidate) => item(candidate, () => take(withInstead(text, word, candidate))));
    part("list").replaceChildren(...items);
    place(wordElements(words)[number]);
    box.querySelector("button")?.focus();
  }

  function take(text) {
    leave();
    choose(text);
  }

  /** Close, and go back to the word. */
  function leave() {
    const back = number;
    close();
    focusWord(words, back);
  }

  function close() {
    if (number === null) return;
    number = null;
    run.stop();
    box.hidden = true;
  }

  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    else if (event.key === "ArrowDown") step(event.target, 1);
    else if (event.key === "ArrowUp") step(event.target, -1);
    else return;
    event.preventDefault();
  });
  box.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !box.contains(relatedTarget)) close();
  });
  words.addEventListener("keydown", ({ key }) => key === "Escape" && close());
  document.addEventListener("pointerdown", ({ target }) => box.contains(target) || close());
  return { open, close };
}

function step(from, way) {
  const all = [...box.querySelectorAll("button")];
  all.at((all.indexOf(from) + way) % all.length).focus();
}

function item(candidate, onclick) {
  const word = element("span", { dir: "auto" }, candidate.shown);
  const share = element("span", { className: "number" }, percent(candidate.probability, 1));
  return element("li", {}, element("button", { type: "button", onclick }, word, share));
}

async function candidatesAt(text, { start, end }, signal) {
  const before = text.slice(0, start);
  const gapsBefore = before.split(MASK).length - 1;
  const texts = [before + MASK + text.slice(end)];
  const [{ masks }] = await ask("fill", { texts, top: HOW_MANY }, signal);
  return readable(masks[gapsBefore].candidates);
}

/** Put the list under the word, within what is around both. */
function place(word) {
  const around = box.parentElement.getBoundingClientRect();
  const at = word.getClientRects()[0];
  const farthest = Math.max(0, around.width - box.offsetWidth);
  box.style.setProperty("left", `${Math.min(Math.max(0, at.left - around.left), farthest)}px`);
  box.style.setProperty("top", `${at.bottom - around.top + GAP}px`);
}
