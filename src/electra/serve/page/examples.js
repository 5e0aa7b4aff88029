// Nothing -> texts to begin with, one after the other.

const TEXTS = [
  "The chef cooked the meal in a small kitchen behind the restaurant. Every evening the guests waited at " +
    "their tables, and the waiter brought them bread, soup and a glass of red wine.",
  "The river rises in the mountains in the north of the country and flows through three large cities " +
    "before it reaches the sea. In spring, when the snow melts, the water covers the fields on both sides.",
  "If the file cannot be opened, an error is raised. The optional argument is a string which gives the " +
    "mode in which the file is read; if it is not given, the default value is used.",
  "She was born in 1902 as the second daughter of a teacher. After the war she studied physics, became a " +
    "professor at the university, and wrote several books about the history of science.",
  "The first railway in the region was built by a private company in the middle of the nineteenth century. " +
    "It was used to carry coal from the mines to the harbour, and later also passengers.",
];

let next = 0;

/** Another text each time. */
export function anExample() {
  return TEXTS[next++ % TEXTS.length];
}
