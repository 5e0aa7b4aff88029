"""A family <-> its name and settings, as JSON holds them."""

import dataclasses
from typing import Any

from electra.errors import InputError
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.classification import Classification, MultiLabel, MultipleChoice, Regression
from electra.tasks.families.family import Family
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging

FAMILIES: dict[str, type[Family[Any]]] = {
    family.name: family
    for family in (
        Classification,
        MultiLabel,
        MultipleChoice,
        QuestionAnswering,
        Regression,
        Similarity,
        Tagging,
    )
}


def describe_family(family: Family[Any]) -> dict[str, Any]:
    """What `build_family` makes the same family of."""
    return {"family": family.name, "settings": settings_of(family)}


def build_family(facts: dict[str, Any], *, where: str) -> Family[Any]:
    """The family that was described."""
    if facts.get("family") not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InputError(f"{where}: family is {facts.get('family')!r}, expected one of {known}")
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts["settings"].items()
    }
    return FAMILIES[facts["family"]](**settings)


def settings_of(family: Family[Any]) -> dict[str, Any]:
    """The arguments that it was made with."""
    match family:
        case Classification():
            return {"labels": family.labels(), "metrics": family.metrics}
        case MultiLabel():
            return {"labels": family.labels()}
        case Regression():
            return {"low": family.low, "high": family.high, "metrics": family.metrics}
        case QuestionAnswering():
            return family.settings
        case Tagging() | Similarity():
            return dataclasses.asdict(family)
        case MultipleChoice():
            return {}
    raise AssertionError(f"{type(family).__name__} is not known here")
