"""A size and a task -> what others have published for it, to stand beside our own scores."""

from electra.tasks.defaults import Size

RELEASED = "the authors' released ELECTRA-{size}, which was trained longer than the one in their paper"
"""What must be said wherever the scores below are shown: these "++" models are not the paper's."""

# Percent, medians on the development sets; CoLA by MCC, STS-B by Spearman, MRPC by accuracy, SQuAD by exact
# match, CoNLL-2000 by chunk F1. From the README of the authors' code.
_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "squad_v1", "squad_v2", "conll2000")
_MEDIANS: dict[Size, tuple[float, ...]] = {
    "small": (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7, 75.8, 70.1, 96.5),
    "base": (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7, 86.8, 80.5, 97.1),
    "large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0, 89.7, 88.1, 97.2),
}


def released(size: Size) -> dict[str, float]:
    """Task -> the development score in percent of the released model of a size."""
    return dict(zip(_TASKS, _MEDIANS[size], strict=True))
