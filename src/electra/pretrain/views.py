"""What networks see and what they measure -> words for a person: rows token by token, signs of collapse."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor


def readable_row(
    row: int,
    length: int,
    input_ids_BL: np.ndarray[Any, Any],
    views: Mapping[str, Tensor],
    tokens: Callable[[Sequence[int]], list[str]],
) -> dict[str, Any]:
    """A row as the generator and the discriminator see it, with what they make of it."""
    shown: dict[str, Any] = {"original": tokens(input_ids_BL[row, :length].tolist())}
    for name in ("masked", "corrupted"):
        if f"{name}_ids_BL" in views:
            shown[name] = tokens(views[f"{name}_ids_BL"][row, :length].tolist())
    if "replaced_BL" in views:
        shown["replaced"] = views["replaced_BL"][row, :length].int().tolist()
    if "logits_BL" in views:
        shown["suspicion"] = [round(p, 4) for p in views["logits_BL"][row, :length].sigmoid().tolist()]
    return shown


_EARLY_SHARE, _EARLY_STEPS = 0.1, 500
"""Of a run: before them every discriminator is at chance."""


def collapse(values: Mapping[str, float], *, step: int, progress: float) -> str | None:
    """What is wrong with the discriminator, and the cures that users of ELECTRA found; None if nothing is."""
    if progress < _EARLY_SHARE or step < _EARLY_STEPS or "discriminator_auc" not in values:
        return None
    recall, auc = values["discriminator_recall"], values["discriminator_auc"]
    replaced = values.get("replaced_fraction", math.nan)
    cures = "known cures: lower --train.learning_rate, raise --masking.mask_prob, lower --generator.width"
    if replaced < 0.005:
        return (
            f"only {replaced:.2%} of the tokens are replaced: the generator guesses nearly all, which leaves "
            f"the discriminator nothing to learn; {cures}"
        )
    if auc < 0.53 and not recall > 0.01:
        return (
            f"the discriminator calls nothing replaced (recall {recall:.3f}, AUC {auc:.3f}) while "
            f"{replaced:.1%} are; {cures}; with little text, --model.position_embedding_type alibi leaves "
            "this plateau sooner"
        )
    return None


def show_row(row: Mapping[str, Any]) -> str:
    """A row on four lines: what stood there, what the generator saw and made of it, what was replaced."""
    lines = [
        f"  {name:<10} {' '.join(row[name])}" for name in ("original", "masked", "corrupted") if name in row
    ]
    if "replaced" in row:
        changes = [
            f"{before} -> {after}"
            + (f" (suspicion {row['suspicion'][place]:.2f})" if "suspicion" in row else "")
            for place, (before, after) in enumerate(zip(row["original"], row["corrupted"], strict=True))
            if row["replaced"][place]
        ]
        lines.append(f"  {'replaced':<10} {'; '.join(changes) or 'nothing'}")
    return "\n".join(lines)
