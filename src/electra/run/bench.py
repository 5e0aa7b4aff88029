"""`electra bench`: our speed beside the alternatives and the machine's own peak, in one run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from electra import config, files
from electra.bench import finetuning, pretraining, turns
from electra.bench.finetuning import FinetuneBenchConfig
from electra.bench.pretraining import PretrainBenchConfig
from electra.errors import InputError, import_extra

What = Literal["pretrain", "finetune"]
KINDS = {"pretrain": pretraining, "finetune": finetuning}


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Our speed beside the alternatives, and the machine's own peak."""

    what: What | None = None
    """What to measure; may also stand alone: electra bench pretrain."""
    pretrain: PretrainBenchConfig = field(default_factory=PretrainBenchConfig)
    finetune: FinetuneBenchConfig = field(default_factory=FinetuneBenchConfig)
    json: str | None = None
    """File for all figures."""
    contestant: str | None = None
    """Take one turn of one contestant and print its seconds; what the command calls itself with."""


def main(arguments: Sequence[str]) -> None:
    """Let the contestants take turns, and print a table."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words = ["--what", *words]
    settings = config.parse(BenchConfig, words, prog="electra bench")
    if settings.what is None:
        raise InputError(f"say what to measure: electra bench {' | '.join(KINDS)}")
    import_extra("transformers", extra="hf")
    kind, options = KINDS[settings.what], getattr(settings, settings.what)
    if settings.contestant:
        print(json.dumps(kind.take_turn(options, settings.contestant)))
        return
    result = turns.measure(kind.contest(options), lambda name: [*words, "--contestant", name])
    print(turns.table(result))
    if settings.json:
        files.write_json(Path(settings.json), {**result, "settings": config.to_dict(settings)})
