"""The name of a task, or a task file, and its data -> the task. The table of all names is here."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra.errors import InputError
from electra.show import did_you_mean
from electra.tasks.data.columns import OwnTaskConfig, read_task_file
from electra.tasks.data.conll import TreebankColumn, load_conll, load_conllu
from electra.tasks.data.datasets import PREFIX, load_dataset_for, load_dataset_task
from electra.tasks.data.glue import GLUE_TASKS, find_glue, glue_task, load_glue, task_files
from electra.tasks.data.minimal_pairs import TASK as MINIMAL_PAIRS
from electra.tasks.data.squad import ANSWERABILITY, load_squad
from electra.tasks.data.table import load_own, load_own_file
from electra.tasks.data.views import ContrastiveConfig, load_contrastive
from electra.tasks.families.answering import NULL_THRESHOLD, QuestionAnswering, SpanKind
from electra.tasks.families.options import Options
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import TagKind
from electra.tasks.model import FineTuned
from electra.tasks.task import TRAIN, Task

GLUE, AX, MNLI, OWN, CONTRASTIVE = "glue", "ax", "mnli", "csv", "contrastive"
OPTIONS = Options.kind
"""Also a table: `--task options` is `--task csv --own.kind options`."""
GLUE_COLUMNS = tuple(name for name in GLUE_TASKS if name != AX)
_TASK_FILES = (".yaml", ".yml")
_HOLD_OUT_SEED = 0
"""What is held out does not depend on the seeds of the training."""


@dataclass(frozen=True, kw_only=True)
class SquadConfig:
    """Settings for question answering."""

    head: SpanKind = "joint"
    """joint predicts the end of an answer given its start, as the original does; otherwise independently."""
    doc_stride: int = 128
    """Distance in tokens between the starts of two windows of a long text."""
    max_query_length: int = 64
    """Maximum length of a question in tokens; the rest is cut off."""
    max_answer_length: int = 30
    """Maximum length of an answer in tokens."""
    null_threshold: float = NULL_THRESHOLD
    """Predict no answer if the null odds are above this threshold."""
    train: list[str] = field(default_factory=list)
    """Files to train on. Default: the one with the official name in the data folder."""
    dev: list[str] = field(default_factory=list)
    """Files to score on. Default: the one with the official name."""
    test: list[str] = field(default_factory=list)
    """Files to predict. Default: the one with the official name."""

    def family(self, task: str) -> QuestionAnswering:
        """The kind of task with these settings."""
        return QuestionAnswering(
            head=self.head,
            answerability=ANSWERABILITY[task],
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
            max_answer_length=self.max_answer_length,
            null_threshold=self.null_threshold,
        )


@dataclass(frozen=True, kw_only=True)
class ConllConfig:
    """Which columns contain words and tags."""

    word_column: int = 0
    """Column of the words, counted from 0, or backwards from -1."""
    tag_column: int = -1
    """Column of the tags, counted in the same way."""
    scheme: TagKind | None = None
    """Whether tags mark chunks (entities) or single words (tokens). Default: detected from the tags."""
    treebank_column: TreebankColumn = "upos"
    """CoNLL-U: universal (upos) or language-specific (xpos) tags."""


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """The task and its data."""

    task: str = ""
    """Task: cola sst2 mrpc stsb qqp mnli qnli rte wnli ax, glue (all of those that are in the data folder),
    squad_v1, squad_v2, conll2000, conll, conllu, csv (your own table), options (the same, judged by words
    in a template), contrastive (text without labels, for vectors), hf:NAME[:CONFIG][@SPLIT] (a dataset on the
    Hugging Face Hub, or a folder of `datasets`), or a YAML file with the keys of --own. Tasks separated by
    commas are learned together."""
    data: str = ""
    """Folder with the official files of the task, or your own file or folder. For contrastive: text as
    prepare reads it, or a data set of prepare."""
    own: OwnTaskConfig = field(default_factory=OwnTaskConfig)
    squad: SquadConfig = field(default_factory=SquadConfig)
    conll: ConllConfig = field(default_factory=ConllConfig)
    contrastive: ContrastiveConfig = field(default_factory=ContrastiveConfig)


Loader = Callable[[str, TaskSource, Path], Task]


def _glue(name: str, source: TaskSource, data: Path) -> Task:
    return load_glue(name, data)


def _squad(name: str, source: TaskSource, data: Path) -> Task:
    named = {
        split: [_beside(data, file) for file in getattr(source.squad, split)]
        for split in ("train", "dev", "test")
    }
    # A folder is not searched where all that is needed is named.
    is_complete = bool(named["train"] and named["dev"])
    return load_squad(name, None if is_complete else data, **named, family=source.squad.family(name))


def _beside(data: Path, file: str) -> Path:
    """A file in the data folder, or else as it is named."""
    inside = data / file
    return inside if inside.is_file() else Path(file)


def _conll(name: str, source: TaskSource, data: Path) -> Task:
    keys = source.conll
    return load_conll(
        name, data, word_column=keys.word_column, tag_column=keys.tag_column, scheme=keys.scheme
    )


def _conllu(name: str, source: TaskSource, data: Path) -> Task:
    return load_conllu(data, name=name, column=source.conll.treebank_column)


def _own(name: str, source: TaskSource, data: Path) -> Task:
    return load_own(own_keys(name, source), data, name=name, seed=_HOLD_OUT_SEED)


def _contrastive(name: str, source: TaskSource, data: Path) -> Task:
    # Results may lie beside the text, and are none.
    out = getattr(source, "out", "")
    return load_contrastive(
        source.contrastive, source.own, source.data, name=name, seed=_HOLD_OUT_SEED, out=out
    )


LOADERS: dict[str, Loader] = {
    **dict.fromkeys(GLUE_TASKS, _glue),
    **dict.fromkeys(ANSWERABILITY, _squad),
    "conll2000": _conll,
    "conll": _conll,
    "conllu": _conllu,
    OWN: _own,
    OPTIONS: _own,
    CONTRASTIVE: _contrastive,
}


def own_keys(name: str, source: TaskSource) -> OwnTaskConfig:
    """What the columns of a table mean, which the name of its task may say, too."""
    if name != OPTIONS:
        return source.own
    if source.own.kind not in (OwnTaskConfig().kind, OPTIONS):
        raise InputError(
            f"--task {OPTIONS} is a table of the kind {OPTIONS}, and --own.kind is {source.own.kind}: leave "
            "one of them out"
        )
    return dataclasses.replace(source.own, kind=OPTIONS)


def task_names(source: TaskSource) -> list[str]:
    """The requested tasks; an InputError if one of them is unknown."""
    names = [name.strip() for name in source.task.split(",") if name.strip()]
    for name in names:
        if name == MINIMAL_PAIRS:
            raise InputError(f"task {name} needs no fine-tuning: electra score --model RUN --task {name}")
        if _is_dataset(name) and source.data:
            raise InputError(f"task {name} is its own data: leave out --data {source.data}")
        if name not in LOADERS and not _is_file(name) and not _is_dataset(name) and name != GLUE:
            known = " ".join([*LOADERS, GLUE])
            hint = did_you_mean(name, [*LOADERS, GLUE])
            raise InputError(
                f"task {name!r} is unknown{hint}: expected one of {known}, hf:NAME, or a YAML file of your "
                "own task"
            )
    if GLUE in names and len(names) > 1:
        raise InputError(f"{GLUE} runs its tasks one after the other: it cannot be learned with others")
    if len(set(names)) < len(names):
        raise InputError(f"a task is named twice in {source.task!r}")
    if not names:
        raise InputError("give --task NAME or FILE")
    return names


def one_task(source: TaskSource, *, default: str) -> str:
    """The single requested task; the model's own if none is named."""
    names = task_names(source) if source.task else [default if default in LOADERS else OWN]
    if len(names) > 1 or names == [GLUE]:
        raise InputError(f"--task {source.task}: a model is evaluated on one task at a time")
    return names[0]


def load_task(name: str, source: TaskSource) -> Task:
    """A task with all of its data read and checked."""
    if _is_file(name):
        # A task file names its data; --data is for those who keep it elsewhere.
        own, data = read_task_file(Path(name))
        return load_own(own, Path(source.data or data), name=Path(name).stem, seed=_HOLD_OUT_SEED)
    if _is_dataset(name):
        return load_dataset_task(source.own, name, seed=_HOLD_OUT_SEED)
    # Sets of similarity can be scored without a text to learn from.
    if not source.data and name != CONTRASTIVE:
        raise InputError(f"give --data DIR, the folder with the files of {name}")
    return LOADERS[name](name, source, Path(source.data))


def own_columns(name: str, source: TaskSource) -> OwnTaskConfig | None:
    """What the columns mean, if the task is a user's own table."""
    if _is_file(name):
        return read_task_file(Path(name))[0]
    return own_keys(name, source) if name in (OWN, OPTIONS) or _is_dataset(name) else None


def trainable_glue(folder: str) -> tuple[list[str], dict[str, str]]:
    """The GLUE tasks in a folder that can be trained, and why others there cannot."""
    if not folder:
        raise InputError("give --data DIR, the folder that has those of the GLUE tasks in it")
    found = [name for name in find_glue(folder) if name != AX]
    files = {name: task_files(glue_task(name), Path(folder)) for name in found}
    trainable = [name for name in found if any(split.name == TRAIN for split in files[name])]
    return trainable, {name: f"{name} has no {TRAIN}.tsv" for name in found if name not in trainable}


def glue_with_tests(folder: str) -> list[str]:
    """The GLUE tasks in a folder that have a test set, including the diagnostic set."""
    found = {name: task_files(glue_task(name), Path(folder)) for name in find_glue(folder)}
    return [name for name, splits in found.items() if any(split.submission for split in splits)]


def trained_as(name: str) -> str:
    """The task whose model predicts a task: MNLI's for the diagnostic set."""
    return MNLI if name == AX else name


def load_for(tuned: FineTuned, name: str, source: TaskSource) -> Task:
    """A task for a model that was trained before: the model's labels count."""
    main_score = str(tuned.facts.get("main_score", ""))
    if _is_dataset(name):
        task = load_dataset_for(source.own, name, family=tuned.family, main_score=main_score)
    elif name in (OWN, OPTIONS) or _is_file(name):
        own, data = (
            read_task_file(Path(name)) if _is_file(name) else (own_keys(name, source), Path(source.data))
        )
        path = Path(source.data or data)
        if path.is_file():
            task = load_own_file(
                own, path, name=name, family=tuned.family, main_score=main_score, split="dev"
            )
        else:
            task = load_own(own, path, name=name, seed=_HOLD_OUT_SEED)
    else:
        task = load_task(name, source)
    if name == AX and tuned.task != MNLI:
        raise InputError(f"{AX} needs a model of {MNLI}, not of {tuned.task}")
    ours, theirs = tuned.family, task.family
    if name == CONTRASTIVE and isinstance(ours, Similarity) and ours.loss != CONTRASTIVE:
        raise InputError(
            f"the model learned values of similarity ({ours.loss}) and does not rank passages: --task stsb "
            "or csv scores it"
        )
    if not ours.can_judge(theirs):
        raise InputError(
            f"the model was trained for {_kind(ours.name, ours.labels())}, but {name} is "
            f"{_kind(theirs.name, theirs.labels())}: give a model that was fine-tuned for it"
        )
    return dataclasses.replace(task, family=ours)


def _kind(name: str, labels: Sequence[str]) -> str:
    return f"{name.replace('_', ' ')}" + (f" with the labels {', '.join(labels)}" if labels else "")


def _is_dataset(name: str) -> bool:
    return name.startswith(PREFIX)


def _is_file(name: str) -> bool:
    return Path(name).suffix in _TASK_FILES
