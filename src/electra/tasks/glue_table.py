"""The name of a GLUE task -> its files, columns, labels and scores, as the benchmark defines them."""

from dataclasses import dataclass

from electra.errors import InputError
from electra.tasks.classification import Classification, Regression

MISSING_COLUMNS = "columns are missing"
EMPTY_TEXT = "a text is empty"


@dataclass(frozen=True, kw_only=True)
class GlueSplit:
    """One file of a task."""

    name: str
    files: tuple[str, ...]
    """Names that it goes by; the first is the official one."""
    num_examples: int
    """As published."""
    columns: tuple[str, ...] | None = None
    """Names of its columns, if its first line does not hold them."""
    submission: str | None = None
    """Name of the file that predictions go to the benchmark's server in, which keeps the labels to itself."""


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of the benchmark. Its columns have the same names in all its files."""

    name: str
    folders: tuple[str, ...]
    """Names that its folder goes by; the first is the official one."""
    texts: tuple[str, ...]
    """Columns of the text, or of the pair."""
    label: str = "label"
    """Column of the class or value."""
    id: str = "index"
    """Column of the example's own number, in those files that have it."""
    family: Classification | Regression
    written: tuple[str, ...] = ()
    """How labels stand in the files, also in those for the server, in the order of the family's names."""
    splits: tuple[GlueSplit, ...]
    leaderboard: tuple[str, ...]
    """Scores whose mean over all sets is the task's number on the leaderboard. The paper, and our average,
    count the family's first score alone, and of MNLI the matched set."""
    epochs: float = 3.0
    is_unordered: bool = False
    """Whether a pair means the same when it is swapped."""
    known_flaws: tuple[str, ...] = ()
    """What is wrong with some lines of the official files themselves."""


def three_files(
    train: int, dev: int, test: int, *, submission: str, columns: tuple[str, ...] | None = None
) -> tuple[GlueSplit, ...]:
    """The usual files, from their numbers of examples; a test file always names its columns."""
    return (
        GlueSplit(name="train", files=("train.tsv",), num_examples=train, columns=columns),
        GlueSplit(name="dev", files=("dev.tsv",), num_examples=dev, columns=columns),
        GlueSplit(name="test", files=("test.tsv",), num_examples=test, submission=submission),
    )


BINARY = ("0", "1")
PAIR = ("sentence1", "sentence2")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("entailment", "neutral", "contradiction")

TASKS = (
    GlueTask(
        name="cola",
        folders=("CoLA",),
        texts=("sentence",),
        family=Classification(("unacceptable", "acceptable"), ("mcc", "accuracy")),
        written=BINARY,
        splits=three_files(
            8551, 1043, 1063, submission="CoLA.tsv", columns=("source", "label", "mark", "sentence")
        ),
        leaderboard=("mcc",),
    ),
    GlueTask(
        name="sst2",
        folders=("SST-2",),
        texts=("sentence",),
        family=Classification(("negative", "positive"), ("accuracy",)),
        written=BINARY,
        splits=three_files(67349, 872, 1821, submission="SST-2.tsv"),
        leaderboard=("accuracy",),
    ),
    GlueTask(
        name="mrpc",
        folders=("MRPC",),
        texts=("#1 String", "#2 String"),
        label="Quality",
        family=Classification(("not_equivalent", "equivalent"), ("accuracy", "f1")),
        written=BINARY,
        splits=three_files(3668, 408, 1725, submission="MRPC.tsv"),
        leaderboard=("accuracy", "f1"),
        is_unordered=True,
    ),
    GlueTask(
        name="stsb",
        folders=("STS-B",),
        texts=PAIR,
        label="score",
        family=Regression(low=0.0, high=5.0, metrics=("spearman", "pearson")),
        splits=three_files(5749, 1500, 1379, submission="STS-B.tsv"),
        leaderboard=("pearson", "spearman"),
        epochs=10.0,
        is_unordered=True,
    ),
    GlueTask(
        name="qqp",
        folders=("QQP",),
        texts=("question1", "question2"),
        label="is_duplicate",
        id="id",
        family=Classification(("not_duplicate", "duplicate"), ("accuracy", "f1")),
        written=BINARY,
        splits=three_files(363846, 40430, 390965, submission="QQP.tsv"),
        leaderboard=("accuracy", "f1"),
        known_flaws=(MISSING_COLUMNS, EMPTY_TEXT),
    ),
    GlueTask(
        name="mnli",
        folders=("MNLI",),
        texts=PAIR,
        label="gold_label",
        family=Classification(THREE_WAY, ("accuracy",)),
        written=THREE_WAY,
        splits=(
            GlueSplit(name="train", files=("train.tsv",), num_examples=392702),
            GlueSplit(name="dev_matched", files=("dev_matched.tsv",), num_examples=9815),
            GlueSplit(name="dev_mismatched", files=("dev_mismatched.tsv",), num_examples=9832),
            GlueSplit(
                name="test_matched", files=("test_matched.tsv",), num_examples=9796, submission="MNLI-m.tsv"
            ),
            GlueSplit(
                name="test_mismatched",
                files=("test_mismatched.tsv",),
                num_examples=9847,
                submission="MNLI-mm.tsv",
            ),
        ),
        leaderboard=("accuracy",),
    ),
    GlueTask(
        name="qnli",
        folders=("QNLI",),
        texts=("question", "sentence"),
        family=Classification(TWO_WAY, ("accuracy",)),
        written=TWO_WAY,
        splits=three_files(104743, 5463, 5463, submission="QNLI.tsv"),
        leaderboard=("accuracy",),
    ),
    GlueTask(
        name="rte",
        folders=("RTE",),
        texts=PAIR,
        family=Classification(TWO_WAY, ("accuracy",)),
        written=TWO_WAY,
        splits=three_files(2490, 277, 3000, submission="RTE.tsv"),
        leaderboard=("accuracy",),
        epochs=10.0,
    ),
    GlueTask(
        name="wnli",
        folders=("WNLI",),
        texts=PAIR,
        family=Classification(("not_entailment", "entailment"), ("accuracy",)),
        written=BINARY,
        splits=three_files(635, 71, 146, submission="WNLI.tsv"),
        leaderboard=("accuracy",),
    ),
    # Nobody trains on the diagnostic set: it is for models that learned MNLI, whose labels it has.
    GlueTask(
        name="ax",
        folders=("AX", "diagnostic", "MNLI"),
        texts=PAIR,
        family=Classification(THREE_WAY, ("mcc",)),
        written=THREE_WAY,
        splits=(
            GlueSplit(
                name="test", files=("diagnostic.tsv", "AX.tsv"), num_examples=1104, submission="AX.tsv"
            ),
        ),
        leaderboard=("mcc",),
    ),
)


def glue_task(name: str) -> GlueTask:
    """The row of a task, or which there are."""
    for task in TASKS:
        if task.name == name:
            return task
    raise InputError(f"{name!r} is no task of GLUE, expected one of {', '.join(task.name for task in TASKS)}")
