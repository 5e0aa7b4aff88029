"""A family <-> its name and settings, as JSON holds them. A new family is named here and nowhere else."""

from collections.abc import Mapping
from typing import Any

from electra.errors import InputError
from electra.schema import check_arguments, short
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import Ability, Family, ForeignModel, Recognised
from electra.tasks.families.options import Options
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
        Options,
    )
}


def describe_family(family: Family[Any]) -> dict[str, Any]:
    """What `build_family` makes the same family of."""
    return {"family": family.name, "settings": family.settings()}


def build_family(facts: Mapping[str, Any], *, where: str) -> Family[Any]:
    """The family that was described; what was not is an error that names the file, `where`, and the key."""
    if facts["family"] not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InputError(f"{where}: family is {short(facts['family'])}, expected one of {known}")
    family = FAMILIES[facts["family"]]
    check_arguments(facts["settings"], family, where=where, key="settings")
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts["settings"].items()
    }
    try:
        return family(**settings)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


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
