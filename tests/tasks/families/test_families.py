import inspect
import json

import pytest

from electra.errors import InputError
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import PooledFamily
from electra.tasks.families.options import Options
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.table import FAMILIES, build_family, describe_family
from electra.tasks.families.tagging import Tagging

# Each with no value at its default.
EXAMPLES = [
    Classification(("no", "yes"), ("mcc", "f1"), head_pooling="mean"),
    MultiLabel(("red", "green", "blue"), head_pooling="mean"),
    MultipleChoice(head_pooling="mean"),
    Options(
        ("no", "yes"), ("bad", "good"), template="{text} So {}.", metrics=("f1",), detection_head="with_cls"
    ),
    QuestionAnswering(
        head="plain",
        answerability="off",
        max_query_length=10,
        doc_stride=20,
        max_answer_length=5,
        beam_size=3,
        n_best_size=4,
        null_threshold=1.5,
    ),
    Regression(low=-1.0, high=7.0, metrics=("spearman",), head_pooling="mean"),
    Similarity(pooling="cls", loss="cosent", temperature=0.1, max_score=4.0),
    Tagging(("O", "S-LOC"), "entities"),
]


@pytest.mark.parametrize("family", EXAMPLES, ids=lambda family: family.name)
def test_a_family_comes_back_from_json(family):
    facts = describe_family(family)
    again = build_family(json.loads(json.dumps(facts)), where="here")
    assert type(again) is type(family)
    assert describe_family(again) == facts
    assert again.labels() == family.labels()
    # A new argument of a constructor must not be forgotten here.
    assert facts["settings"].keys() == (
        inspect.signature(type(family)).parameters.keys() - {"args", "kwargs"}
    )


POOLED = [family for family in EXAMPLES if isinstance(family, PooledFamily)]


@pytest.mark.parametrize("family", POOLED, ids=lambda family: family.name)
def test_models_that_say_nothing_of_pooling_are_judged_by_cls(family):
    facts = json.loads(json.dumps(describe_family(family)))
    del facts["settings"]["head_pooling"]
    before = build_family(facts, where="here")
    assert (before.head_pooling, before.positions) == ("cls", "first")
    assert family.positions == "all"
    assert describe_family(before.pooled_by("mean")) == describe_family(family)
    assert describe_family(family.pooled_by("cls")) == describe_family(before)


def test_another_pooling_is_refused():
    with pytest.raises(InputError, match="head_pooling is 'max', expected cls or mean"):
        Classification(("no", "yes"), head_pooling="max")


def test_all_families_are_known():
    assert {type(family) for family in EXAMPLES} == set(FAMILIES.values())


def test_an_unknown_family_is_named():
    with pytest.raises(InputError, match=r"config\.json.*family.*'poetry'.*classification"):
        build_family({"family": "poetry", "settings": {}}, where="config.json")
