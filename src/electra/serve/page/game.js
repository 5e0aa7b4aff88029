// A text -> rounds of the training game: the generator rewrites it, player and discriminator hunt the words.

import { ask } from "./api.js";
import { onSubmit, parts } from "./dom.js";
import { anExample } from "./examples.js";
import { drawReveal, drawScore } from "./game_result.js";
import { newest } from "./newest.js";
import { addRound, forgetRounds, judge, mostSuspicious } from "./scoring.js";
import { characterPlaces, phrasesOf, wordsOf } from "./text.js";
import { drawWords, focusWord, walkWords, wordElements } from "./words.js";

const MOST_TRIES = 5; // The generator may guess every word right, and then there is nothing to hunt.

const part = parts("game");

export function start() {
  const run = newest("game");
  const [field, box, rate] = [part("text"), part("words"), part("rate")];
  let round = null;

  function corrupt() {
    const text = field.value;
    if (text.trim()) {
      run((signal) => rewritten(text, rate.value / 100, signal), begin);
    } else {
      field.focus();
    }
  }

  function begin({ text, words, unit }) {
    round = { text, words, unit, marked: new Set(), isOpen: true };
    part("title").textContent = `Which ${unit}s were replaced?`;
    drawWords(box, text, words, () => ({ role: "button", "aria-pressed": "false" }));
    showStage("guessing");
    showCount();
    focusWord(box, 0);
  }

  function mark(number) {
    if (!round?.isOpen) return;
    const isMarked = !round.marked.delete(number);
    if (isMarked) round.marked.add(number);
    wordElements(box)[number].setAttribute("aria-pressed", String(isMarked));
    showCount();
  }

  function showCount() {
    const count = round.marked.size;
    const marked = `${count} ${round.unit}${count === 1 ? "" : "s"} marked`;
    part("count").textContent = count ? marked : `Mark a ${round.unit} first.`;
    part("reveal").disabled = count === 0;
  }

  function reveal() {
    round.isOpen = false;
    const model = mostSuspicious(round.words, round.marked.size);
    const [own, other] = [judge(round.words, round.marked), judge(round.words, model)];
    const winner = addRound(own, other);
    drawReveal({ ...round, model }, { own, other, winner }, { box, result: part("result") });
    showStage("revealed");
    showScore();
    part("result").focus();
  }

  function showScore() {
    part("reset").hidden = !drawScore(part("score"));
  }

  onSubmit(part("form"), corrupt);
  rate.addEventListener("input", () => (part("rate-shown").textContent = `${rate.value} %`));
  part("example").addEventListener("click", () => (field.value = anExample()));
  part("reveal").addEventListener("click", reveal);
  part("next").addEventListener("click", corrupt);
  part("reset").addEventListener("click", () => {
    forgetRounds();
    showScore();
  });
  walkWords(box, mark);
  showScore();
}

/** What there is to see before the player guesses, while he does, and after. */
function showStage(stage) {
  part("empty").hidden = true;
  for (const name of ["how", "reveal", "count"]) part(name).hidden = stage !== "guessing";
  for (const name of ["key", "result", "next"]) part(name).hidden = stage !== "revealed";
}

/** The text as the generator leaves it, with a new seed each time. */
async function rewritten(text, maskProb, signal) {
  let turn;
  for (let tries = 0; tries < MOST_TRIES; tries += 1) {
    const seed = crypto.getRandomValues(new Uint32Array(1))[0];
    [turn] = await ask("corrupt", { texts: [text], mask_prob: maskProb, seed }, signal);
    if (turn.tokens.some(({ replaced }) => replaced)) break;
  }
  const unit = hasPhrases(turn) ? "phrase" : "word";
  return { text: turn.corrupted, words: gameWords(turn), unit };
}

/** Whether the generator rewrites whole phrases, so that a phrase is what the player marks. */
const hasPhrases = ({ tokens }) => tokens.some(({ phrase }) => phrase != null);

/** The words or phrases of the rewritten text: what each was, whether it was replaced, how suspicious it is. */
function gameWords(turn) {
  const { text, corrupted, tokens } = turn;
  const places = characterPlaces(text);
  const moved = tokens.map((token) => ({
    ...token,
    original: [token.start, token.end],
    start: token.corrupted_start,
    end: token.corrupted_end,
  }));
  const grouped = hasPhrases(turn) ? phrasesOf : wordsOf;
  return grouped(corrupted, moved).map(({ start, end, tokens: own }) => ({
    start,
    end,
    original: text.slice(places[own[0].original[0]], places[own.at(-1).original[1]]),
    replaced: own.some(({ replaced }) => replaced),
    suspicion: Math.max(...own.map(({ suspicion }) => suspicion)),
  }));
}
