"""`electra score`: texts or minimal pairs -> how acceptable a pre-trained model finds them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from electra import config, show
from electra.prediction.minimal_pairs import MinimalPairScores
from electra.prediction.model import Model
from electra.prediction.score_data import ScoreConfig, score_pairs, score_rows, write_rows
from electra.progress import LiveLine
from electra.store.cache import with_urls
from electra.train import devices

MOST_SHOWN = 20
"""Rows that are printed; a file gets all."""
MOST_CHARACTERS = 60
QUICK_SECONDS = 10.0


def main(arguments: Sequence[str]) -> None:
    """Score, print, and write if a file is named."""
    given = config.read(ScoreConfig, arguments, prog="electra score")
    with given.opened(reads=("model", "data"), writes=("out",)) as given:
        score(given.config())


def score(settings: ScoreConfig) -> None:
    """Score texts, pairs or phenomena, and show them."""
    devices.set_up_allocator()
    if settings.task == "minimal_pairs":
        with LiveLine(first_plain_after=QUICK_SECONDS) as live:
            found = score_pairs(
                settings,
                on_load=show_precision,
                on_phenomenon=lambda name, done: live.show(name, done=done),
            )
        print(pairs_table(found.scores))
        if found.note:
            print(f"\n  note: {found.note}")
        if found.path:
            print(f"\n  {with_urls(str(found.path))}")
        return
    shown: list[dict[str, Any]] = []
    count = 0

    def kept() -> Iterator[dict[str, Any]]:
        nonlocal count
        for row in score_rows(settings, on_load=show_precision):
            count += 1
            if len(shown) < MOST_SHOWN:
                shown.append(row)
            yield row

    if settings.out:
        write_rows(Path(settings.out), kept())
    else:
        for _ in kept():
            pass
    print(rows_table(shown))
    if count > len(shown):
        rest = "" if settings.out else "; --out FILE writes all of them"
        print(f"  and {count - len(shown):,} more{rest}")
    if settings.out:
        print(f"\n  {with_urls(settings.out)}")


def show_precision(model: Model) -> None:
    """Say how the model computes, before it does."""
    print(f"  computes in {model.precision} ({model.precision_reason})", flush=True)


def rows_table(rows: Sequence[dict[str, Any]]) -> str:
    """Texts with their scores, the two of a pair one below the other, and tokens where they are given."""
    methods = list(rows[0]["scores"])
    head = ["", *(name for method in methods for name in (method, "per token")), "tokens", "unknown", "text"]
    lines: list[list[str]] = [head]
    for row in rows:
        lines.append([str(row["id"]), *_cells(row, methods)])
        lines += _token_lines(row, methods)
        if pair := row.get("pair"):
            lines.append(["", *_cells(pair, methods)])
            lines += _token_lines(pair, methods)
            better = {"text": "above", "pair": "below", "tie": "tie", None: show.NOTHING}
            lines.append(
                [
                    "better",
                    *(cell for method in methods for cell in (better[row["preferred"][method]], "")),
                    *("", "", ""),
                ]
            )
    return show.table(lines)


def _cells(scored: dict[str, Any], methods: Sequence[str]) -> list[str]:
    text = " ".join(scored["text"].split())
    short = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return [
        *(_number(scored["scores"][method][kind]) for method in methods for kind in ("sum", "mean")),
        str(scored["num_tokens"]),
        str(scored["num_unknown"]),
        short,
    ]


def _token_lines(scored: dict[str, Any], methods: Sequence[str]) -> list[list[str]]:
    return [
        [
            "",
            *(cell for method in methods for cell in (_number(token["scores"][method]), "")),
            *("", "", f"  {token['text']}"),
        ]
        for token in scored.get("tokens", [])
    ]


def _number(value: float | None) -> str:
    return show.NOTHING if value is None else f"{value:.3f}"


def pairs_table(found: MinimalPairScores) -> str:
    """The accuracy for each phenomenon and their mean."""
    rows = [["phenomenon", "pairs", "unknown", *found.methods, "ties"]]
    for name, one in found.phenomena.items():
        accuracies = [show.percent(one.accuracies[method]) for method in found.methods]
        ties = " + ".join(str(one.ties[method]) for method in found.methods)
        rows.append([name, f"{one.num_pairs:,}", f"{one.num_unknown:,}", *accuracies, ties])
    overall = [show.percent(accuracy) for accuracy in found.accuracies.values()]
    rows.append(["mean of all phenomena", f"{found.num_pairs:,}", "", *overall, ""])
    return show.table(rows, numbers=True)
