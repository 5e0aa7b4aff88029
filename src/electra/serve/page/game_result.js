// A finished round -> the words as they turned out, and the score of both players.

import { element, percent } from "./dom.js";
import { outcome, rounds } from "./scoring.js";
import { drawWords } from "./words.js";

const VERDICTS = {
  player: "You win this round.",
  model: "The discriminator wins this round.",
  drawn: "A draw.",
};
const NAMES = { found: "✓ found", missed: "✗ missed", alarm: "! false alarm" };

/** Colour the words of `box`, and fill `result` with both scores and each word that matters. */
export function drawReveal({ text, words, unit, marked, model }, { own, other, winner }, { box, result }) {
  const seen = words.map((word, number) => ({
    ...word,
    shown: text.slice(word.start, word.end),
    byPlayer: outcome(word, marked.has(number)),
    byModel: outcome(word, model.has(number)),
  }));
  drawWords(box, text, seen, (word, number) => dress(word, model.has(number)));
  result.replaceChildren(
    element("p", { className: "verdict" }, VERDICTS[winner]),
    scores(own, other),
    wordTable(unit, seen.filter(({ byPlayer, byModel }) => byPlayer || byModel)),
  );
}

function dress({ shown, original, replaced, byPlayer, byModel }, isModels) {
  const said = [shown, replaced ? `was ${original}` : "", byPlayer ? `you: ${NAMES[byPlayer]}` : ""];
  if (byModel) said.push(`discriminator: ${NAMES[byModel]}`);
  return {
    className: ["word", byPlayer ?? "", isModels ? "model-mark" : ""].join(" "),
    role: "img",
    "aria-label": said.filter(Boolean).join(", "),
  };
}

function scores(own, other) {
  const row = (name, { found, missed, alarms }) => {
    const values = [`${found} of ${found + missed}`, String(alarms)];
    const cells = values.map((value) => element("td", {}, value));
    return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
  };
  const head = ["", "Found", "False alarms"].map((name) => element("th", { scope: "col" }, name));
  return element(
    "table",
    { className: "scores" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, row("You", own), row("Discriminator", other)),
  );
}

function wordTable(unit, words) {
  const badge = (name) => (name ? element("span", { className: `badge ${name}` }, NAMES[name]) : "–");
  const rows = words.map(({ shown, original, replaced, byPlayer, byModel, suspicion }) => {
    const before = replaced ? [element("del", {}, original), " → "] : [];
    return element(
      "tr",
      {},
      element("th", { scope: "row", dir: "auto" }, ...before, shown),
      element("td", {}, badge(byPlayer)),
      element("td", {}, badge(byModel), element("span", { className: "quiet" }, ` ${percent(suspicion)}`)),
    );
  });
  const title = unit === "word" ? "Word" : "Phrase";
  const head = [title, "You", "Discriminator"].map((name) => element("th", { scope: "col" }, name));
  const table = element(
    "table",
    { className: "word-table" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows),
  );
  return element("div", { className: "scroll" }, table);
}

/** Write the rounds of this session; whether there were any. */
export function drawScore(line) {
  const { player, model, drawn } = rounds();
  const all = player + model + drawn;
  line.textContent = all
    ? `${all} ${all === 1 ? "round" : "rounds"}: you ${player}, discriminator ${model}, drawn ${drawn}`
    : "";
  return all > 0;
}
