// Texts, one a line -> how near each is to each other: a table of cosines.

import { ask } from "./api.js";
import { element, onSubmit, parts } from "./dom.js";
import { newest } from "./newest.js";

const part = parts("embed");

export function start() {
  const run = newest("embed");
  onSubmit(part("form"), () => {
    const texts = part("text").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (texts.length < 2) {
      run.stop();
      const advice = element("p", { className: "empty" }, "Write at least two texts, one a line.");
      part("result").replaceChildren(advice);
    } else {
      run((signal) => ask("embed", { texts }, signal), (vectors) => show(texts, vectors));
    }
  });
}

/** Vectors come with length 1, so that the product is the cosine. */
const cosine = (one, other) => one.reduce((sum, value, at) => sum + value * other[at], 0);

function show(texts, vectors) {
  const columns = ["", ...texts.map((_, at) => String(at + 1))];
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  const rows = texts.map((text, at) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", dir: "auto", title: text }, `${at + 1}  ${text}`),
      ...vectors.map((other) => cell(cosine(vectors[at], other))),
    ),
  );
  const table = element(
    "table",
    { className: "cosines" },
    element("caption", {}, `Cosines of ${texts.length} texts, in ${vectors[0].length} dimensions`),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows),
  );
  part("result").replaceChildren(element("div", { className: "scroll card" }, table));
}

function cell(value) {
  const made = element("td", { className: "cosine" }, value.toFixed(2));
  made.style.setProperty("--share", Math.max(0, value));
  return made;
}
