// A text -> its words with their tags, or the chunks that the tags mark.

import { ask } from "./api.js";
import { element, onSubmit, parts, percent } from "./dom.js";
import { newest } from "./newest.js";
import { located } from "./text.js";

const NUM_COLOURS = 8;

const part = parts("tag");

export function start({ labels }) {
  const run = newest("tag");
  // As in "B-PER" and "I-PER": such tags mark chunks, others stand for themselves.
  const inChunks = labels.filter((label) => /^[BIES]-/u.test(label));
  const types = [...new Set(inChunks.map((label) => label.slice(2)))];
  onSubmit(part("form"), () => {
    const text = part("text").value;
    if (!text.trim()) return part("text").focus();
    return run((signal) => ask("tag", { texts: [text] }, signal), ([result]) => show(result, types));
  });
}

function show({ text, words, chunks }, types) {
  const marks = types.length
    ? located(text, chunks).map(chunkMark(text, types))
    : located(text, words).map(wordMark(text));
  const nothing = element("p", { className: "empty" }, "Nothing in this text is marked.");
  const drawn = [between(text, marks), ...(marks.length ? [] : [nothing])];
  part("result").replaceChildren(element("div", { className: "card" }, ...drawn));
}

/** The text with some of its places drawn in another way. */
function between(text, marks) {
  const box = element("div", { className: "reading tags", dir: "auto" });
  let done = 0;
  for (const { start, end, drawn } of marks) {
    box.append(text.slice(done, start), drawn);
    done = end;
  }
  box.append(text.slice(done));
  return box;
}

const chunkMark = (text, types) => ({ start, end, type }) => {
  const className = `chunk kind-${Math.max(0, types.indexOf(type)) % NUM_COLOURS}`;
  const name = element("small", {}, type);
  return { start, end, drawn: element("mark", { className }, text.slice(start, end), " ", name) };
};

const wordMark = (text) => ({ start, end, tag, confidence }) => {
  const name = element("rt", { title: percent(confidence, 1) }, tag);
  return { start, end, drawn: element("ruby", {}, text.slice(start, end), name) };
};
