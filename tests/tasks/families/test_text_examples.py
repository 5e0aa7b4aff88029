import pytest

from electra.errors import InputError
from electra.tasks.families.choice import ChoiceExample
from electra.tasks.families.family import TextExample, known_labels


def test_labels_of_examples_that_are_scored():
    examples = [TextExample(id="1", where="a:1", text="x", label=(0, 2))]
    assert known_labels(examples) == [(0, 2)]
    questions = [ChoiceExample(id="1", where="a:7", prompt="x", choices=("y", "z"))]
    with pytest.raises(InputError, match=r"a:7: .*label"):
        known_labels(questions)
