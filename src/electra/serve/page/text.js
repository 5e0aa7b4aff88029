// A text and the server's tokens -> words with their places in a string of JavaScript.
//
// The server counts characters (code points); JavaScript counts UTF-16 units, two for an emoji.

const IN_WORDS = /[\p{L}\p{M}\p{N}]/u;
const ASIAN = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"];
const WITHOUT_BLANKS = new RegExp(ASIAN.map((name) => `\\p{Script=${name}}`).join("|"), "u");
const SPECIAL = /^\[(PAD|UNK|CLS|SEP|MASK)\]$/;

export const MASK = "[MASK]";

/** Where each character begins, and where the last one ends. */
export function characterPlaces(text) {
  const places = [0];
  for (const character of text) places.push(places.at(-1) + character.length);
  return places;
}

/** Things with `start` and `end` in characters -> the same in JavaScript's units. */
export function located(text, things) {
  const places = characterPlaces(text);
  return things.map((thing) => ({ ...thing, start: places[thing.start], end: places[thing.end] }));
}

/**
 * The words that tokens make up: `{start, end, tokens}`, where `tokens` are those of the list.
 *
 * Tokens side by side are one word if they touch in letters or digits, in a script that has blanks. A token
 * without characters, such as a byte of an emoji, goes with the next.
 */
export function wordsOf(text, tokens) {
  const words = [];
  let waiting = [];
  for (const token of located(text, tokens)) {
    waiting.push(token);
    if (token.start === token.end) continue;
    const before = words.at(-1);
    if (before?.end === token.start && touchInWord(text, token.start)) {
      before.end = token.end;
      before.tokens.push(...waiting);
    } else {
      words.push({ start: token.start, end: token.end, tokens: waiting });
    }
    waiting = [];
  }
  words.at(-1)?.tokens.push(...waiting);
  return words;
}

/** The phrases that tokens are numbered by, in the same form. */
export function phrasesOf(text, tokens) {
  const phrases = [];
  for (const token of located(text, tokens)) {
    const before = phrases.at(-1);
    if (before?.tokens[0].phrase === token.phrase) {
      before.end = token.end;
      before.tokens.push(token);
    } else {
      phrases.push({ start: token.start, end: token.end, tokens: [token] });
    }
  }
  return phrases;
}

function touchInWord(text, place) {
  const before = [...text.slice(Math.max(0, place - 2), place)].at(-1);
  const after = String.fromCodePoint(text.codePointAt(place));
  return [before, after].every((character) => IN_WORDS.test(character) && !WITHOUT_BLANKS.test(character));
}

/** What the generator offers, without the vocabulary's marks; `joins` if it goes on with the word before. */
export function readable(candidates) {
  return candidates
    .filter(({ token }) => !SPECIAL.test(token))
    .map(({ token, probability }) => {
      const joins = /^##./u.test(token);
      const text = token.replace(/^(##|▁|Ġ)(?=.)/u, "");
      return { text, joins, probability, shown: joins ? `…${text}` : text };
    });
}

/** The text with `candidate` in place of the characters from `start` to `end`. */
export function withInstead(text, { start, end }, candidate) {
  const before = text.slice(0, start);
  return (candidate.joins ? before.trimEnd() : before) + candidate.text + text.slice(end);
}
