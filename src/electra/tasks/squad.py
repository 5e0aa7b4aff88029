"""SQuAD 1.1, SQuAD 2.0 or anything in their format, or MRQA's -> a task of question answering."""

import re
from collections.abc import Sequence
from pathlib import Path

from electra.errors import InputError
from electra.tasks.squad_examples import Answer, AnswerExample
from electra.tasks.squad_family import Answerability, QuestionAnswering
from electra.tasks.squad_files import write_squad_files
from electra.tasks.squad_reader import SUFFIXES, Questions, read_questions
from electra.tasks.task import TRAIN, Task

__all__ = ["Answer", "AnswerExample", "QuestionAnswering", "load_squad", "write_squad_files"]

ANSWERABILITY: dict[str, Answerability] = {"squad_v1": "off", "squad_v2": "on"}
MAIN_SCORES = {"squad_v1": "f1", "squad_v2": "best_f1"}
SPLITS = (TRAIN, "dev", "test")


def load_squad(
    name: str,
    source: Path | None = None,
    *,
    train: Sequence[Path] = (),
    dev: Sequence[Path] = (),
    test: Sequence[Path] = (),
    family: QuestionAnswering | None = None,
) -> Task:
    """A task from a folder with files of the official names, from one file, or from files named by split.

    `squad_v1` has an answer to every question, in `squad_v2` there may be none. A folder is searched for
    `train*`, `dev*` and `test*` of its version only for the splits that are not named.
    """
    if name not in ANSWERABILITY:
        raise InputError(f"no task {name!r}, expected one of {', '.join(ANSWERABILITY)}")
    family = family or QuestionAnswering(answerability=ANSWERABILITY[name])
    paths = {split: list(named) for split, named in zip(SPLITS, (train, dev, test), strict=True)}
    if source is not None:
        paths = {split: paths[split] or found for split, found in _search(name, source).items()}
    paths = {split: of_split for split, of_split in paths.items() if of_split}
    if not paths:
        raise InputError(
            f"{name}: no file to read: give a folder with {_expected(name)}, or name the files of the splits"
            + (f"; {source} has {_contents(source)}" if source else "")
        )
    splits: dict[str, Sequence[AnswerExample]] = {}
    unlabelled, notes = set(), []
    for split, of_split in paths.items():
        found = read_questions(of_split, purpose="learn" if split == TRAIN else "score")
        if family.answerability == "off":
            _refuse_impossible(found)
        splits[split] = found.examples
        if not _is_labelled(found):
            unlabelled.add(split)
        notes += _notes(split, found)
    return Task(
        name=name,
        family=family,
        splits=splits,
        unlabelled=frozenset(unlabelled),
        main_score=MAIN_SCORES[name],
        epochs=2.0,
        max_length=512,
        notes=notes,
    )


def _search(name: str, source: Path) -> dict[str, list[Path]]:
    """The files of each split. A single file is of the split that its name begins with, else `dev`."""
    if source.is_file():
        of_file = next((split for split in SPLITS if source.name.startswith(split)), "dev")
        return {split: [source] if split == of_file else [] for split in SPLITS}
    if not source.is_dir():
        raise InputError(f"{source} is neither a folder nor a file")
    found: dict[str, list[Path]] = {}
    for split in SPLITS:
        candidates = sorted(path for path in source.glob(f"{split}*") if path.name.endswith(SUFFIXES))
        found[split] = [path for path in candidates if _version(path) in (None, name)]
        if len(found[split]) > 1:
            listed = ", ".join(path.name for path in found[split])
            raise InputError(f"{source} has several files for {split}: {listed}; name the one that is meant")
    return found


def _version(path: Path) -> str | None:
    """The task that a file's name tells, such as dev-v2.0.json."""
    version = re.search(r"v([12])\.", path.name)
    return f"squad_v{version[1]}" if version else None


def _expected(name: str) -> str:
    version = {"squad_v1": "v1.1", "squad_v2": "v2.0"}[name]
    return f"train-{version}.json or dev-{version}.json"


def _contents(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"


def _refuse_impossible(found: Questions) -> None:
    for example in found.examples:
        if example.is_impossible:
            raise InputError(
                f"{example.where}: is_impossible is true, but squad_v1 has an answer to every question: "
                "use squad_v2"
            )


def _is_labelled(found: Questions) -> bool:
    """Whether the answers of a split are known, all or none of them."""
    unknown = [example for example in found.examples if not example.is_labelled]
    if unknown and len(unknown) < len(found.examples):
        raise InputError(
            f"{unknown[0].where}: no answers, and no is_impossible true, unlike other questions "
            f"({len(unknown)} of {len(found.examples)} are so): say which it is, or remove it"
        )
    return not unknown


def _notes(split: str, found: Questions) -> list[str]:
    """What a person should know of a split."""
    num_contexts = len({example.context for example in found.examples})
    num_impossible = sum(example.is_impossible for example in found.examples)
    notes = [f"{split}: {len(found.examples):,} questions on {num_contexts:,} texts"]
    if num_impossible:
        notes[0] += f", {num_impossible:,} without an answer"
    if found.num_moved:
        notes.append(
            f"{split}: {found.num_moved:,} answers do not stand where answer_start says: "
            "the first place where the text has them was taken"
        )
    if found.num_unlocated:
        notes.append(f"{split}: {found.num_unlocated:,} answers do not occur in their text word for word")
    return notes
