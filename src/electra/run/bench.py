"""`electra bench`: our speed beside the alternatives and the machine's own peak; the quality of recipes."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from electra import config, files
from electra.bench import finetuning, growth, preparing, pretraining, quality, serving, tables, turns
from electra.bench.finetuning import FinetuneBenchConfig
from electra.bench.growth import GrowthBenchConfig
from electra.bench.preparing import PrepareBenchConfig
from electra.bench.pretraining import PretrainBenchConfig
from electra.bench.quality import QualityBenchConfig
from electra.bench.serving import ServeBenchConfig
from electra.bench.turns import Contest, Turn
from electra.errors import InputError, import_extra

What = Literal["pretrain", "prepare", "finetune", "serve", "growth", "quality", "all"]


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
GROWTH, QUALITY, ALL = "growth", "quality", "all"
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
    """What to measure; the option's name may be left out: electra bench pretrain."""
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
    contestant: str | None = None
    """Internal: take one turn of one contestant and report it."""
    material: str | None = None
    """Internal: folder with what the contestants share."""

    def __post_init__(self) -> None:
        if self.plot and Path(self.plot).suffix not in (".svg", ".png"):
            raise InputError(f"plot is {self.plot}, expected a file with the suffix .svg or .png")


def main(arguments: Sequence[str]) -> None:
    """Let the contestants take turns and print a table."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words = ["--what", *words]
    settings = config.parse(BenchConfig, words, prog="electra bench")
    if settings.contestant:
        take_turn(settings, settings.contestant)
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


def take_turn(settings: BenchConfig, name: str) -> None:
    """Take a turn and print its result on the last line."""
    if settings.what is None or settings.material is None or settings.what == QUALITY:
        raise InputError("--contestant is internal to electra bench: leave it out")
    room = growth if settings.what == GROWTH else CONTESTS[settings.what]
    turn = room.take_turn(getattr(settings, settings.what), name, Path(settings.material))
    if turn is not None:
        print(json.dumps(turn._asdict()))


def measure_kinds(settings: BenchConfig, words: Sequence[str]) -> dict[str, Any]:
    """Measure every kind that is asked for; results are written after each, so that nothing is lost."""
    if settings.what is None:
        raise InputError(
            f"say what to measure: electra bench {' | '.join([*CONTESTS, GROWTH, QUALITY, ALL])}"
        )
    kinds = [*CONTESTS, GROWTH] if settings.what == ALL else [settings.what]
    for kind in kinds:
        for module, extra in EXTRAS.get(kind, {}).items():
            import_extra(module, extra=extra)
    results: dict[str, Any] = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="electra-bench-") as folder:
            results[kind] = measure_kind(kind, settings, words, Path(folder))
        if settings.json:
            content = {"results": results, "settings": config.to_dict(settings)}
            files.write_json(Path(settings.json), content)
    return results


def measure_kind(kind: str, settings: BenchConfig, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Measure one kind; contestants are this same command with some more options."""
    options = getattr(settings, kind)
    if kind == QUALITY:
        return quality.measure_quality(options)

    def command(name: str, material: Path = folder) -> list[str]:
        return ["bench", *words, f"--what={kind}", f"--contestant={name}", f"--material={material}"]

    if kind == GROWTH:
        return growth.measure_growth(options, folder, lambda data: command("step", data))
    return turns.run_contest(CONTESTS[kind].contest(options, folder), command)


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
