// The server's description of its model -> the tabs for what that model can do.

import * as answer from "./answer.js";
import { describeModel } from "./api.js";
import * as choose from "./choose.js";
import * as classify from "./classify.js";
import * as detect from "./detect.js";
import * as embed from "./embed.js";
import * as fill from "./fill.js";
import * as game from "./game.js";
import { newest } from "./newest.js";
import * as options from "./options.js";
import * as tag from "./tag.js";
import { showTabs } from "./tabs.js";

/**
 * Panel -> the ability that it needs, and what starts it.
 *
 * Fine-tuned models choose among the choices of a question, others among options for a text.
 */
const PANELS = {
  detect: ["detect", detect],
  game: ["corrupt", game],
  fill: ["fill", fill],
  classify: ["classify", classify],
  tag: ["tag", tag],
  answer: ["answer", answer],
  choose: ["choose", choose, ({ task }) => task !== null],
  options: ["choose", options, ({ task }) => task === null],
  embed: ["embed", embed],
};

function facts({ name, labels, max_length }) {
  const words = [name];
  if (max_length) words.push(`reads ${max_length} tokens at once, longer texts in windows`);
  if (labels.length) words.push(`${labels.length} labels`);
  return words.join(" · ");
}

function begin(model) {
  document.title = `${model.name} · electra`;
  document.getElementById("model-facts").textContent = facts(model);
  const there = Object.entries(PANELS).filter(
    ([, [ability, , suits = () => true]]) => model.abilities.includes(ability) && suits(model),
  );
  for (const [, [, panel]] of there) panel.start(model);
  showTabs(there.map(([name]) => name));
}

newest("page")(describeModel, begin);
