"""What a run begins with -> its description on disk -> whether a command continues it or is another run."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import electra
from electra.errors import InputError
from electra.files import read_json, write_file, write_json
from electra.train.devices import describe_machine

ENVIRONMENT = "environment.json"


@dataclass(frozen=True, kw_only=True)
class ResumeConfig:
    """What may differ from the run that is continued."""

    allow_changes: list[str] = field(default_factory=list)
    """Keys that may have changed, such as train.steps, or `all`."""


def write_description(
    out: Path, settings: Mapping[str, Any], *, choices: Mapping[str, Any], **facts: Any
) -> None:
    """Write config.yaml, which runs the same again, and environment.json: the machine, choices and facts."""
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    write_file(out / "config.yaml", lambda file: file.write(text.encode()))
    environment = {
        **describe_machine(),
        "electra": electra.__version__,
        "command": sys.argv,
        "choices": dict(choices),
        **facts,
    }
    write_json(out / ENVIRONMENT, environment)


def read_choices(run: Path) -> dict[str, Any]:
    """What the run chose for itself when it began (precision, micro-batch), to stay the same run."""
    path = run / ENVIRONMENT
    choices = read_json(path).get("choices", {}) if path.is_file() else {}
    assert isinstance(choices, dict)
    return choices


def check_same_run(
    saved: Mapping[str, Any], asked: Mapping[str, Any], config: ResumeConfig, *, free_keys: Sequence[str]
) -> None:
    """Refuse to continue with other data, another tokenizer, or a changed config that was not allowed."""
    for key, what in (("dataset_sha256", "data"), ("tokenizer_sha256", "tokenizer")):
        if saved[key] != asked[key]:
            raise InputError(
                f"the run was begun with another {what}: its checkpoint says {saved[key]}, --data has "
                f"{asked[key]}; give the {what} of the run, or another --out"
            )
    before, now = dict(flatten(saved["config"])), dict(flatten(asked["config"]))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    refused = [key for key in changed if not _is_under(key, free_keys) and not _is_allowed(key, config)]
    if refused:
        lines = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in refused]
        raise InputError(
            "\n  ".join(["the config differs from that of the run in", *lines])
            + f"\nto continue with it: --resume.allow_changes {' '.join(refused)}\n"
            "to begin anew: another --out"
        )


def _is_under(key: str, prefixes: Sequence[str]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _is_allowed(key: str, config: ResumeConfig) -> bool:
    return "all" in config.allow_changes or _is_under(key, config.allow_changes)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plain(value: Any) -> Any:
    """A config as JSON can hold it: what is infinite becomes a word."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
