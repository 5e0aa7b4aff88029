import pytest

from electra.tasks import results


def test_the_released_models_are_those_of_the_authors_readme():
    assert results.released("small")["cola"] == 57.0
    assert results.released("base")["squad_v2"] == 80.5
    assert results.released("large")["conll2000"] == 97.2


@pytest.mark.parametrize("task", ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"])
def test_larger_models_are_better(task):
    small, base, large = (results.released(size)[task] for size in ("small", "base", "large"))
    assert small < base < large


def test_they_are_never_called_the_papers_models():
    assert "trained longer than the one in their paper" in results.RELEASED
