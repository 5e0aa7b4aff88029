"""`electra bench`: our speed beside the alternatives and the machine's own peak; the quality of recipes; what
changed since an earlier run.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from electra import cli, config, files
from electra.bench import finetuning, growth, history, preparing, pretraining, quality, serving, tables, turns
from electra.bench.finetuning import FinetuneBenchConfig
from electra.bench.growth import GrowthBenchConfig
from electra.bench.history import AUTO
from electra.bench.preparing import PrepareBenchConfig
from electra.bench.pretraining import PretrainBenchConfig
from electra.bench.quality import QualityBenchConfig
from electra.bench.serving import ServeBenchConfig
from electra.bench.turns import Contest, Turn
from electra.cluster import check_address
from electra.errors import InputError, import_extra

Bench = Literal["pretrain", "prepare", "finetune", "serve", "growth", "quality"]
What = Literal[Bench, "all", "compare"]


class Kind(Protocol):
    """The functions of a contest's module."""

    def contest(self, settings: Any, folder: Path) -> Contest:
        """The contest; writes what all contestants need into the folder."""

    def take_turn(self, settings: Any, name: str, folder: Path) -> Turn:
        """Take one turn of one contestant, in this process."""


CONTESTS: dict[str, Kind] = {
    "pretrain": pretraining,
    "prepare": preparing,
    "finetune": finetuning,
    "serve": serving,
}
GROWTH, QUALITY, ALL, COMPARE = "growth", "quality", "all", "compare"
"""`all` is about speed: quality takes hours, and data of its own."""
EXTRAS = {
    "pretrain": {"transformers": "hf"},
    "finetune": {"transformers": "hf"},
    "serve": {"transformers": "hf", "uvicorn": "serve"},
    "quality": {"sklearn": "tasks", "matplotlib": "report"},
}
"""Kind -> the modules it needs, each with the extra that installs it."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Our speed beside the alternatives, and the machine's own peak; the quality of recipes."""

    what: What | None = None
    """What to measure, or `compare` to see what changed since an earlier run. The option's name may be left
    out: electra bench pretrain."""
    pretrain: PretrainBenchConfig = field(default_factory=PretrainBenchConfig)
    prepare: PrepareBenchConfig = field(default_factory=PrepareBenchConfig)
    finetune: FinetuneBenchConfig = field(default_factory=FinetuneBenchConfig)
    serve: ServeBenchConfig = field(default_factory=ServeBenchConfig)
    growth: GrowthBenchConfig = field(default_factory=GrowthBenchConfig)
    quality: QualityBenchConfig = field(default_factory=QualityBenchConfig)
    json: str | None = None
    """JSON file to write all figures to."""
    plot: str | None = None
    """Picture file to write, .svg or .png. Default of quality: quality.svg in its folder."""
    from_json: str | None = None
    """Show the figures of this file in place of measuring."""
    history: str = AUTO
    """File that gets a line for each bench that is measured (date, commit, processor, precision, ratios and
    settings), and that `compare` reads. auto: benchmarks/history.jsonl if the current folder has it, as a
    checkout may, else none. none: no file."""
    bench: Bench | None = None
    """compare: only this bench. Default: all that the later run has."""
    before: str | None = None
    """compare: the earlier run, by a line number of the history or the beginning of a commit. Default: the
    newest one before the later run with the same bench, settings and processor."""
    after: str | None = None
    """compare: the later run, by the same. Default: the newest."""
    fail_on_regression: bool = False
    """compare: end with exit code 1 if a ratio got worse by more than the noise."""
    cluster: str | None = None
    """quality: pre-train and measure on a Ray cluster: ray://HOST:PORT, auto (the cluster that this machine
    is a node of) or local (one on this machine's cores). All nodes must see the data under the same names."""
    cluster_cores: int = 1
    """quality: cores of each worker there."""
    contestant: str | None = None
    """Internal: take one turn of one contestant and report it."""
    material: str | None = None
    """Internal: folder with what the contestants share."""

    def __post_init__(self) -> None:
        if self.plot and Path(self.plot).suffix not in (".svg", ".png"):
            raise InputError(f"plot is {self.plot}, expected a file with the suffix .svg or .png")
        if self.cluster_cores < 1:
            raise InputError(f"cluster_cores is {self.cluster_cores}, expected 1 or more")
        if self.cluster is not None:
            check_address(self.cluster)
        elif self.cluster_cores > 1:
            raise InputError("cluster_cores is for a cluster: give --cluster, too")
        compares = self.what == COMPARE
        foreign = ("plot", "from_json") if compares else ("bench", "before", "after", "fail_on_regression")
        for key in foreign:
            if getattr(self, key):
                which = "is not for" if compares else "is only for"
                raise InputError(f"{key} is {getattr(self, key)}, which {which} electra bench compare")


def main(arguments: Sequence[str]) -> None:
    """Let the contestants take turns and print a table."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words = ["--what", *words]
    settings = config.parse(BenchConfig, words, prog="electra bench")
    if settings.contestant:
        take_turn(settings, settings.contestant)
        return
    if settings.what == COMPARE:
        compare(settings)
        return
    if settings.plot:
        import_extra("matplotlib", extra="report")
    results = read_results(Path(settings.from_json)) if settings.from_json else measure_kinds(settings, words)
    print("\n\n".join(result_table(kind, result) for kind, result in results.items()))
    plot = settings.plot
    if settings.what == QUALITY and not settings.from_json:
        plot = plot or str(Path(settings.quality.out) / "quality.svg")
        print(f"\n  figures in {Path(settings.quality.out) / quality.RESULT}, picture in {plot}")
    if plot:
        # It imports matplotlib, so only now.
        from electra.bench.plots import draw_picture

        draw_picture(results, Path(plot))
    if not settings.from_json and any(map(is_interrupted, results.values())):
        raise KeyboardInterrupt("the figures above are those of the rounds before")


def take_turn(settings: BenchConfig, name: str) -> None:
    """Take a turn and print its result on the last line."""
    if settings.what is None or settings.material is None or settings.what in (QUALITY, COMPARE, ALL):
        raise InputError("--contestant is internal to electra bench: leave it out")
    room = growth if settings.what == GROWTH else CONTESTS[settings.what]
    turn = room.take_turn(getattr(settings, settings.what), name, Path(settings.material))
    if turn is not None:
        print(json.dumps(turn._asdict()))


def measure_kinds(settings: BenchConfig, words: Sequence[str]) -> dict[str, Any]:
    """Measure every kind that is asked for; results are written after each, so that nothing is lost."""
    if settings.what is None:
        raise InputError(
            f"say what to measure: electra bench {' | '.join([*CONTESTS, GROWTH, QUALITY, ALL])}; "
            f"or {COMPARE}, to see what changed since an earlier run"
        )
    if settings.cluster and settings.what != QUALITY:
        raise InputError("--cluster is for electra bench quality: figures of speed are those of one machine")
    kinds = [*CONTESTS, GROWTH] if settings.what == ALL else [settings.what]
    for kind in kinds:
        for module, extra in EXTRAS.get(kind, {}).items():
            import_extra(module, extra=extra)
    kept = history.history_file(settings.history)
    if kept is not None:
        history.check_writable(kept)
    results: dict[str, Any] = {}
    facts = history.run_facts()
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="electra-bench-") as folder:
            results[kind] = measure_kind(kind, settings, words, Path(folder))
        if settings.json:
            content = {"results": results, "settings": config.to_dict(settings), "run": facts}
            files.write_json(Path(settings.json), content)
        if kept is not None:
            options = config.to_dict(getattr(settings, kind))
            number = history.append(kept, history.line_of(kind, results[kind], facts, options))
            turns.say(f"{kind}: line {number} of {kept}")
        if is_interrupted(results[kind]):
            break
    return results


def is_interrupted(result: Mapping[str, Any]) -> bool:
    """Whether somebody did not want to wait for all of its rounds."""
    return bool(result.get("interrupted"))


def measure_kind(kind: str, settings: BenchConfig, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Measure one kind; contestants are this same command with some more options."""
    options = getattr(settings, kind)
    if kind == QUALITY:
        return quality.measure_quality(options, cluster=settings.cluster, cores=settings.cluster_cores)

    def command(name: str, material: Path = folder) -> list[str]:
        return ["bench", *words, f"--what={kind}", f"--contestant={name}", f"--material={material}"]

    if kind == GROWTH:
        return growth.measure_growth(options, folder, lambda data: command("step", data))
    return turns.run_contest(CONTESTS[kind].contest(options, folder), command)


def compare(settings: BenchConfig) -> None:
    """Print what changed between two runs of the history."""
    path = history.history_file(settings.history)
    if path is None:
        raise InputError(
            f"there is no history to compare ({history.USUAL} is not here): give --history FILE, which "
            "`electra bench WHAT --history FILE` writes"
        )
    records = history.read_history(path)
    if settings.bench:
        records = [record for record in records if record.bench == settings.bench]
    usual = BenchConfig()
    comparisons, missing = history.compare(
        records,
        before=settings.before,
        after=settings.after,
        defaults={bench: config.to_dict(getattr(usual, bench)) for bench in get_args(Bench)},
    )
    print("\n\n".join(map(history.comparison_table, comparisons)))
    for reason in missing:
        print(f"\n  left out: {reason}")
    if settings.json:
        content = {"comparisons": [comparison.as_json() for comparison in comparisons]}
        files.write_json(Path(settings.json), content)
    worse = [f"{found.after.bench}: {name}" for found in comparisons for name in found.worse]
    if worse and settings.fail_on_regression:
        print(f"electra: worse than before: {'; '.join(worse)}", file=sys.stderr)
        sys.exit(cli.FAILURE)


def result_table(kind: str, result: Mapping[str, Any]) -> str:
    """The result as text."""
    if kind == QUALITY:
        return tables.quality_tables(result)
    return tables.growth_tables(result) if kind == GROWTH else tables.contest_table(result)


def read_results(path: Path) -> dict[str, Any]:
    """The results that an earlier run has written."""
    content = files.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        raise InputError(f"{path} is not what `electra bench --json` writes: it has no key 'results'")
    results: dict[str, Any] = content["results"]
    return results
