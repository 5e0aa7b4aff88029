"""A family <-> its name and settings, as JSON holds them. A new family is named here and nowhere else."""

from collections.abc import Mapping
from typing import Any

from electra.errors import InputError
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import Ability, Family, ForeignModel, Recognised
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging

FAMILIES: dict[str, type[Family[Any]]] = {
    family.name: family
    for family in (
        Classification,
        MultiLabel,
        Regression,
        Similarity,
        Tagging,
        QuestionAnswering,
        MultipleChoice,
    )
}


def describe_family(family: Family[Any]) -> dict[str, Any]:
    """What `build_family` makes the same family of."""
    return {"family": family.name, "settings": family.settings()}


def build_family(facts: Mapping[str, Any], *, where: str) -> Family[Any]:
    """The family that was described."""
    if facts.get("family") not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InputError(f"{where}: family is {facts.get('family')!r}, expected one of {known}")
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts["settings"].items()
    }
    return FAMILIES[facts["family"]](**settings)


def recognise(foreign: ForeignModel) -> Recognised | None:
    """What a model of transformers was fine-tuned for; None if no family knows its class."""
    return next(filter(None, (family.recognised(foreign) for family in FAMILIES.values())), None)


def family_of_kind(kind: str, *, where: str = "--own.") -> type[Family[Any]]:
    """The family that --own.kind, or the key `kind` of a task file, names."""
    by_kind = {family.kind: family for family in FAMILIES.values()}
    if kind not in by_kind:
        raise InputError(f"{where}kind is {kind!r}, expected one of {', '.join(by_kind)}")
    return by_kind[kind]


def task_abilities() -> dict[str, Ability]:
    """By name, what fine-tuned models of all families can do."""
    return {family.ability.name: family.ability for family in FAMILIES.values() if family.ability}
