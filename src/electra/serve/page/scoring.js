// Words, and those that somebody marked -> how well he did.

/** "found", "missed" or "alarm" for a word; null where nothing is to be said. */
export function outcome({ replaced }, isMarked) {
  if (replaced) return isMarked ? "found" : "missed";
  return isMarked ? "alarm" : null;
}

/** Counts over `words`, of which those numbered in the set `marked` were marked. */
export function judge(words, marked) {
  const outcomes = words.map((word, number) => outcome(word, marked.has(number)));
  const count = (name) => outcomes.filter((one) => one === name).length;
  return { found: count("found"), missed: count("missed"), alarms: count("alarm") };
}

/**
 * The numbers of the `count` most suspicious words.
 *
 * The discriminator marks as many words as the player: so the one who finds more has won, and a model that is
 * young, and too careful to call anything replaced, plays all the same.
 */
export function mostSuspicious(words, count) {
  const order = [...words.keys()].sort((one, other) => words[other].suspicion - words[one].suspicion);
  return new Set(order.slice(0, count));
}

const KEPT = "electra.score";
const NOTHING = { player: 0, model: 0, drawn: 0 };

/** Rounds won by each since the tab was opened. */
export const rounds = () => JSON.parse(sessionStorage.getItem(KEPT)) ?? NOTHING;

/** One round more: who won it, "player", "model" or "drawn". */
export function addRound(player, model) {
  const winner = player.found === model.found ? "drawn" : player.found > model.found ? "player" : "model";
  const before = rounds();
  sessionStorage.setItem(KEPT, JSON.stringify({ ...before, [winner]: before[winner] + 1 }));
  return winner;
}

export const forgetRounds = () => sessionStorage.removeItem(KEPT);
