"""`electra demo`: the whole path, by the commands a person would type, on Python's own documentation."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config
from electra.cli import main as electra
from electra.errors import InputError, import_extra

# What recipes/demo.yaml says, for an installation that has no recipes; a test keeps the two equal.
RECIPE = (
    *("--model.size", "tiny", "--model.num_hidden_layers", "4", "--model.num_attention_heads", "8"),
    *("--model.embedding_size", "128", "--model.position_embedding_type", "alibi", "--model.dropout", "0"),
    *("--generator.depth", "0.5", "--train.max_time", "3m", "--train.batch_size", "16"),
    *("--train.optimizer", "adamw", "--train.beta2", "0.98", "--train.learning_rate", "1.2e-3"),
    *("--train.warmup_fraction", "0.1", "--train.schedule", "trapezoid", "--train.decay_fraction", "0.4"),
    *("--log.log_every", "20", "--log.evaluate_every", "250", "--checkpoint.save_every", "500"),
)


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole path on Python's own documentation."""

    out: str = "demo"
    """Folder for everything the demo makes; what is there already is not made again."""


def main(arguments: Sequence[str]) -> None:
    """Run and show each command of the path."""
    out = Path(config.parse(DemoConfig, arguments, prog="electra demo").out)
    # Missed at the end, it would cost the whole path.
    import_extra("matplotlib", extra="report")
    data, run = str(out / "data"), str(out / "run")
    for command in (
        ["prepare", "--corpus", "builtin", "--vocab_size", "8192", "--out", data],
        ["pretrain", "--data", data, "--out", run, *RECIPE],
        ["report", run],
    ):
        print(f"\n$ electra {shlex.join(command)}", flush=True)
        if code := electra(command):
            raise InputError(f"the demo stopped at 'electra {command[0]}' (exit code {code})")
    print("\nOpen the report in a browser. On your own text, the same commands with --corpus FOLDER.")
