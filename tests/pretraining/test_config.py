import pytest

from electra.errors import InputError
from electra.pretraining.config import AdversarialConfig, GeneratorConfig, PretrainConfig, TwoStageConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneratorConfig(width=0.0), r"generator\.width.*0\.0"),
        (lambda: GeneratorConfig(temperature=float("inf")), r"generator\.temperature.*inf"),
        (lambda: TwoStageConfig(first_stage_steps=0), r"two_stage\.first_stage_steps.*\b0\b"),
        (lambda: AdversarialConfig(baseline_decay=1.0), r"adversarial\.baseline_decay.*1\.0"),
        (lambda: PretrainConfig(discriminator_weight=-1.0), r"discriminator_weight.*-1\.0"),
    ],
)
def test_a_bad_value_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "generator", "message"),
    [
        ("two_stage", GeneratorConfig(), r"generator\.sharing.*embeddings.*none"),
        ("two_stage", GeneratorConfig(sharing="none"), r"width.*0\.25.*\b1\b"),
        ("two_stage", GeneratorConfig(kind="uniform"), r"generator\.kind.*uniform.*mlm"),
        ("adversarial", GeneratorConfig(kind="uniform"), r"generator\.kind.*uniform.*mlm"),
        ("adversarial", GeneratorConfig(sampling_dropout="off"), r"generator\.sampling_dropout.*off.*\bon\b"),
        ("electric", GeneratorConfig(), r"generator\.kind.*mlm.*two_tower"),
        (
            "electric",
            GeneratorConfig(kind="two_tower", temperature=2.0),
            r"generator\.temperature.*2\.0.*1\.0",
        ),
    ],
)
def test_an_objective_says_what_it_needs(toy, name, generator, message):
    with pytest.raises(InputError, match=message):
        toy.objective(name, generator=generator)
