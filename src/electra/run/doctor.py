"""`electra doctor`: a run, a fine-tuning, a dataset or a model -> what is wrong or fine, and what to type."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra import cli, config
from electra.checkup import examine
from electra.errors import InputError
from electra.report.findings import as_json, counted, in_words, is_well
from electra.store.cache import with_urls


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Say in plain words what is wrong or fine, with a command that cures it."""

    paths: list[str] = field(default_factory=list)
    """Folders of runs, fine-tunings, datasets or models; the option's name may be left out: electra doctor
    PATH [PATH ...]. Exit code: 0 if nothing is wrong, 1 if something is (what is only to watch does not
    count), 2 for bad usage or input."""
    json: bool = False
    """Print the findings as JSON; the value may be left out."""


def main(arguments: Sequence[str]) -> None:
    """Look, and say what was found."""
    words = config.with_first_words(_json_alone(arguments), option="--paths")
    with config.read(DoctorConfig, words, prog="electra doctor").opened(runs=("paths",)) as given:
        doctor(given.config())


def doctor(settings: DoctorConfig) -> None:
    """Examine what is named, and exit with 1 if something is wrong."""
    if not settings.paths:
        raise InputError("give the folder of a run, a dataset or a model: electra doctor PATH [PATH ...]")
    checkups = [examine(Path(path)) for path in settings.paths]
    if settings.json:
        content = [
            {"path": str(one.path), "kind": one.kind, "findings": as_json(one.findings)} for one in checkups
        ]
        print(with_urls(json.dumps(content, indent=2, ensure_ascii=False)))
    else:
        texts = [
            f"{one.path}: {one.kind}, {counted(one.findings)}\n{in_words(one.findings)}" for one in checkups
        ]
        print(with_urls("\n\n".join(texts)))
    if not all(is_well(one.findings) for one in checkups):
        sys.exit(cli.FAILURE)


def _json_alone(arguments: Sequence[str]) -> list[str]:
    """`--json` as `--json=true`, unless a value follows."""
    words = list(arguments)
    for place, word in enumerate(words):
        if word == "--json" and words[place + 1 : place + 2] not in (["true"], ["false"]):
            words[place] = "--json=true"
    return words
