"""`electra report`: run folders -> one HTML page with curves, health and samples, and a table to read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra import config, files
from electra.errors import InputError, import_extra
from electra.report.page import page, terminal_table
from electra.report.runs import read_runs
from electra.store.cache import with_urls


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """One page on a run, or on several laid over one another."""

    runs: list[str] = field(default_factory=list)
    """Run folders; the option's name may be left out: electra report RUN [RUN ...]."""
    out: str | None = None
    """HTML file to write. Default: report.html in the run's folder, or in this folder for several runs
    and for those in an object store."""


def main(arguments: Sequence[str]) -> None:
    """Report on the runs that are named."""
    words = config.with_first_words(arguments, option="--runs")
    with config.read(ReportConfig, words, prog="electra report").opened(
        runs=("runs",), writes=("out",)
    ) as given:
        report(given.config())


def report(settings: ReportConfig) -> None:
    """Write the page and print the summary."""
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
    print(f"\n{with_urls(str(out))}")


def _default_out(folders: Sequence[Path]) -> Path:
    # A run that lies in a store is only read.
    is_here = with_urls(str(folders[0])) == str(folders[0])
    return folders[0] / "report.html" if len(folders) == 1 and is_here else Path("report.html")
