"""Texts and options -> the option that looks least replaced in a sentence behind the text, without training.

The score of an option is the mean, over its tokens, of what `scoring` says of a token: log(1 - p(replaced))
by detection, log p(token | all others) by pseudo_likelihood. The mean, so that options of one token and of
several can be compared. The softmax over the options gives probabilities. Of a text in several windows, each
with the sentence, the scores are averaged by their tokens.

`tasks.families.options` trains the same score.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.prediction.scoring import Scorer
from electra.tasks.families.options import shares, window_means
from electra.text.templates import OptionPrompts, Shown
from electra.text.tokenizer import Tokenizer

ChooseBy = Literal["auto", "detection", "pseudo_likelihood"]
"""auto is detection, if the model has a discriminator."""
ROWS_AT_ONCE = 4096
"""Rows whose tokens are held at a time: 8 MB of token ids for rows of 512."""


def choose_options(
    texts: Sequence[str],
    options: Iterable[str],
    *,
    template: str,
    by: ChooseBy,
    scorer: Scorer,
    tokenizer: Tokenizer,
    max_length: int,
) -> list[dict[str, Any]]:
    """The best option for each text, as plain data; nothing for a text without tokens."""
    if by not in get_args(ChooseBy):
        raise InputError(f"by is {by!r}, expected one of {', '.join(get_args(ChooseBy))}")
    method = scorer.methods(by)[0]
    prompts = OptionPrompts.check(options, template, tokenizer, max_length=max_length)
    judged: list[Shown] = []
    means: list[float] = []
    rows = (row for row in prompts.rows(texts, cut=False) if row.shown.weight)
    while part := list(itertools.islice(rows, ROWS_AT_ONCE)):
        means += scorer.means([row.ids_T for row in part], [row.place for row in part], method=method)
        judged += [row.shown for row in part]
    scores_UC = window_means(judged, means, num_texts=len(texts), num_options=len(prompts.options))
    return [describe_choice(prompts.options, scores_C) for scores_C in scores_UC]


def describe_choice(options: Sequence[str], scores_C: NDArray[np.float64]) -> dict[str, Any]:
    """The option with the highest score, of equal ones the first; nothing without scores."""
    if np.isnan(scores_C).any():
        return {"choice": None, "text": None, "probabilities": [], "scores": []}
    (share_C,) = shares(scores_C[None])
    best = int(scores_C.argmax())
    return {
        "choice": best,
        "text": options[best],
        "probabilities": share_C.tolist(),
        "scores": scores_C.tolist(),
    }
