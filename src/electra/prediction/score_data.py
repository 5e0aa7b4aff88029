"""Keys of `electra score` -> scored texts or pairs of texts, row by row, and files of them.

A file with one text per line, or a table with a column of texts, or with two whose texts are compared.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra import files
from electra.errors import InputError
from electra.model.store import FINAL
from electra.prediction.load import Engine, load
from electra.prediction.minimal_pairs import RESULTS, MinimalPairScores, score_minimal_pairs
from electra.prediction.model import Model
from electra.prediction.scoring import By, TokenDetail, check_gaps
from electra.store.cache import with_urls
from electra.tasks.data.columns import Cells
from electra.tasks.precision import PrecisionName
from electra.text.quarantine import strict_reading
from electra.text.sources import without_compression
from electra.text.spans import check_characters
from electra.text.tables import Dialect, Quoting, read_lines, read_table, table_source

Preference = Literal["text", "pair", "tie"]
OnLoad = Callable[[Model], object]
"""Called with the model before it scores anything."""
ROWS_AT_ONCE = 2048
"""Scored together: enough to find texts of like length, and few enough to see that it goes on."""
LINES = ".txt"
FORMS = (".jsonl", ".csv", ".tsv")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """A pre-trained model, and texts or minimal pairs for it to judge."""

    model: str = ""
    """Folder of a run, of its model, or of a pre-trained model of transformers."""
    text: list[str] = field(default_factory=list)
    """Texts to score, each in quotes."""
    data: str = ""
    """File of texts: .txt with one per line, or a table (CSV, TSV, JSONL, parquet). For minimal pairs a file
    or folder: .txt with lines in pairs, the unacceptable text first, or tables with sentence_good,
    sentence_bad and UID."""
    task: Literal["texts", "minimal_pairs"] = "texts"
    """What the data is: texts to score one by one, or minimal pairs, which give an accuracy for each
    phenomenon."""
    by: By = "auto"
    """How to score: by detection of replaced tokens, in one pass; by pseudo_likelihood, which masks each
    token in turn; by both; auto: by whatever the model has the networks for."""
    tokens: TokenDetail = "hide"
    """Whether to show the score of each token as well."""
    text_column: str = "text"
    """Column of a table that holds the text."""
    pair_column: str | None = None
    """Column that holds a second text to compare with the first. Default: the texts are no pairs."""
    encoding: str | None = None
    """Encoding of the file. Default: detected."""
    delimiter: str | None = None
    """Character between the values of CSV and TSV files, or 'tab'. Default: taken from the file's header."""
    quoting: Quoting | None = None
    """Whether double quotes enclose values (double) or are part of them (none). Default: double, but none
    between tabs."""
    limit: int | None = None
    """Minimal pairs of each phenomenon, always the same ones. Default: all."""
    out: str = ""
    """File to write: .jsonl, .csv or .tsv; for minimal pairs .json. Default: minimal pairs of a run are
    written to minimal_pairs.json in its folder, where its report finds them; texts are only printed."""
    engine: Engine = "torch"
    """Library that runs the model: torch, or onnx for a model from `electra export --to onnx`."""
    device: str = "cpu"
    """Device for torch: cpu, cuda, cuda:1, mps, or auto for the fastest one available."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses the fastest in which the model says the same as in fp32."""

    @property
    def dialect(self) -> Dialect:
        """How the file is read."""
        return Dialect(encoding=self.encoding, delimiter=self.delimiter, quoting=self.quoting)

    def check(self) -> None:
        """Refuse keys that contradict each other, before anything is loaded."""
        if not self.model:
            raise InputError("give --model DIR, the folder of a run or of its model")
        if self.task == "minimal_pairs":
            self._check_minimal_pairs()
        else:
            self._check_texts()

    def _check_minimal_pairs(self) -> None:
        if not self.data:
            raise InputError("give --data DIR, the folder with the files of minimal pairs")
        default = ScoreConfig()
        for key in ("text", "tokens", "text_column", "pair_column", "encoding", "delimiter", "quoting"):
            if getattr(self, key) != getattr(default, key):
                raise InputError(
                    f"{key} is {getattr(self, key)!r}, which --task minimal_pairs has no use for"
                )
        if self.out and Path(self.out).suffix != ".json":
            raise InputError(f"--out {self.out}: the result of minimal pairs is one object, expected .json")

    def _check_texts(self) -> None:
        if bool(self.text) == bool(self.data):
            raise InputError("give either --text \"A text\" or --data FILE (see 'electra score --help')")
        if self.limit is not None:
            raise InputError(f"limit is {self.limit}: it is for --task minimal_pairs")
        _ = self.dialect  # checks its keys
        has_columns = bool(self.data) and not is_lines(Path(self.data))
        for key in ("pair_column", "delimiter", "quoting"):
            if getattr(self, key) is not None and not has_columns:
                raise InputError(f"{key} is {getattr(self, key)!r}, but only a table has columns")
        out = Path(self.out)
        if self.out and out.suffix not in FORMS:
            raise InputError(f"--out {out}: expected a name that ends in {', '.join(FORMS)}")
        if self.out and self.tokens == "show" and out.suffix != ".jsonl":
            raise InputError(f"tokens is show, which {out.name} has no column for: name a .jsonl file")
        for number, text in enumerate(self.text):
            if not text.strip():
                raise InputError(f"text[{number}] is empty, expected a text to score")


class TextRow(NamedTuple):
    """A text to score, or two to compare."""

    id: int
    """Line of the file, or place among the texts, from 1."""
    where: str
    text: str
    pair: str | None = None


def is_lines(path: Path) -> bool:
    """Whether a file's name promises a text in each line."""
    return Path(without_compression(path.name)).suffix.lower() == LINES


def read_rows(settings: ScoreConfig) -> Iterator[TextRow]:
    """The texts that the settings name; blank lines of a .txt file are passed over."""
    path = Path(settings.data)
    if not settings.data:
        for number, text in enumerate(settings.text):
            check_characters(text, where=f"text[{number}]")
            yield TextRow(number + 1, f"text[{number}]", text)
        return
    if not path.is_file():
        raise InputError(f"--data {path}: no such file")
    if is_lines(path):
        for number, line in read_lines(path, encoding=settings.encoding):
            if line.strip():
                yield TextRow(number, f"{path}:{number}", line)
        return
    columns = [settings.text_column, *([settings.pair_column] if settings.pair_column else [])]
    for number, row in read_table(strict_reading(table_source(path)), dialect=settings.dialect):
        cells = Cells(f"{path}:{number}", row)
        texts = [cells.text(column) for column in columns]
        for column, text in zip(columns, texts, strict=True):
            if not text.strip():
                raise InputError(f"{cells.where}: {column!r} is empty, expected a text to score")
        yield TextRow(number, cells.where, *texts)


def score_rows(settings: ScoreConfig, *, on_load: OnLoad = lambda _: None) -> Iterator[dict[str, Any]]:
    """Each row with its scores; one with a pair also says which of both texts each method prefers."""
    settings.check()
    # All of them first: a bad line at the end of a file must not cost an hour.
    rows = list(read_rows(settings))
    if not rows:
        raise InputError(f"--data {settings.data}: no text in it")
    check_gaps([f"{row.text} {row.pair}" for row in rows], [row.where for row in rows])
    model = _load(settings, on_load)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE]
        texts = [text for row in part for text in (row.text, row.pair) if text is not None]
        found = iter(model.score(texts, by=settings.by, tokens=settings.tokens))
        for row in part:
            scored: dict[str, Any] = {"id": row.id, **next(found)}
            if row.pair is not None:
                scored["pair"] = next(found)
                scored["preferred"] = preferences(scored["scores"], scored["pair"]["scores"])
            yield scored


def _load(settings: ScoreConfig, on_load: OnLoad) -> Model:
    model = load(settings.model, device=settings.device, engine=settings.engine, precision=settings.precision)
    on_load(model)
    return model


def preferences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Preference | None]:
    """Method -> the text with the higher sum; None if a text has no tokens."""
    found: dict[str, Preference | None] = {}
    for method in first:
        one, other = first[method]["sum"], second[method]["sum"]
        found[method] = None if one is None or other is None else _better(one, other)
    return found


def _better(one: float, other: float) -> Preference:
    return "tie" if one == other else "text" if one > other else "pair"


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as they come, in the form that the name asks for; the file appears when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_file(path, lambda file: _write_lines(path, rows, file.write))


def _write_lines(path: Path, rows: Iterable[dict[str, Any]], write: Callable[[bytes], object]) -> None:
    for number, row in enumerate(rows):
        if path.suffix == ".jsonl":
            write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            continue
        flat, text = table_row(row), io.StringIO()
        writer = csv.DictWriter(text, list(flat), delimiter="\t" if path.suffix == ".tsv" else ",")
        if not number:
            writer.writeheader()
        writer.writerow(flat)
        write(text.getvalue().encode())


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in columns: `detection_sum`, and `pair_detection_sum` of the second text."""
    found = {"id": row["id"], **_columns(row, "text", "")}
    if "pair" in row:
        found |= _columns(row["pair"], "pair", "pair_")
        found |= {f"{method}_preferred": name for method, name in row["preferred"].items()}
    return found


def _columns(scored: Mapping[str, Any], name: str, prefix: str) -> dict[str, Any]:
    return {
        name: scored["text"],
        **{f"{prefix}{key}": scored[key] for key in ("num_tokens", "num_unknown")},
        **{
            f"{prefix}{method}_{kind}": value
            for method, values in scored["scores"].items()
            for kind, value in values.items()
        },
    }


class PairsResult(NamedTuple):
    """The scores of minimal pairs, and where they were written."""

    scores: MinimalPairScores
    path: Path | None
    note: str | None
    """Why they were not written, if a run's folder could not be."""


def score_pairs(
    settings: ScoreConfig,
    *,
    on_load: OnLoad = lambda _: None,
    on_phenomenon: Callable[[str, float], object] = lambda _name, _done: None,
) -> PairsResult:
    """Score the minimal pairs that the settings name, and write the result."""
    settings.check()
    found = score_minimal_pairs(
        _load(settings, on_load),
        settings.data,
        by=settings.by,
        limit=settings.limit,
        on_phenomenon=on_phenomenon,
    )
    run = run_folder(Path(settings.model))
    path = Path(settings.out) if settings.out else run and run / RESULTS
    try:
        if path:
            found.write(path, model=with_urls(settings.model), data=with_urls(settings.data))
    except OSError as error:
        # Where nobody asked for a file, a run that belongs to somebody else is no reason to lose the result.
        if settings.out:
            raise
        return PairsResult(found, None, f"not written to {path}: {error.strerror}")
    return PairsResult(found, path, None)


def run_folder(model: Path) -> Path | None:
    """The run that a folder is, or that its `final` is part of; None if it is part of none."""
    folders = [model, *(folder.parent for folder in (model, model.parent) if folder.name == FINAL)]
    is_run = (
        folder for folder in folders if (folder / FINAL).is_dir() and (folder / "metrics.jsonl").is_file()
    )
    return next(is_run, None)
