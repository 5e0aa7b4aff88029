"""`electra report`: run folders -> one HTML page with curves, health and samples, and a table to read."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra import config, files
from electra.errors import InputError, import_extra
from electra.report.page import page, terminal_table
from electra.report.runs import read_runs


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """One page on a run, or on several laid over one another."""

    runs: list[str] = field(default_factory=list)
    """Run folders; the option's name may be left out: electra report RUN [RUN ...]."""
    out: str | None = None
    """HTML file to write. Default: report.html in the run's folder, or in this folder for several runs."""


def main(arguments: Sequence[str]) -> None:
    """Write the page and print the summary."""
    settings = config.parse(ReportConfig, _named(arguments), prog="electra report")
    if not settings.runs:
        raise InputError("give one or more run folders: electra report RUN [RUN ...] [--out FILE]")
    import_extra("matplotlib", extra="report")
    folders = [Path(folder) for folder in settings.runs]
    try:
        runs = read_runs(folders)
    except InputError as error:
        raise InputError(f"{error}; 'electra pretrain --out RUN' makes run folders") from error
    out = Path(settings.out) if settings.out else _default_out(folders)
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    html = page(runs).encode()
    files.write_file(out, lambda file: file.write(html))
    print(terminal_table(runs))
    for note in (f"{run.name}: {note}" for run in runs for note in run.notes):
        print(f"  note: {note}")
    print(f"\n{out}")


def _named(arguments: Sequence[str]) -> list[str]:
    """Give the words before the first option their name."""
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    return [*(["--runs", *words] if words else []), *arguments[len(words) :]]


def _default_out(folders: Sequence[Path]) -> Path:
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
