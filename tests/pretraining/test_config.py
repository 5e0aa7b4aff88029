import pytest

from electra.errors import InputError
from electra.pretraining.config import (
    AdversarialConfig,
    GeneratorConfig,
    PretrainConfig,
    SinglePassConfig,
    TwoStageConfig,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneratorConfig(width=0.0), r"generator\.width.*0\.0"),
        (lambda: GeneratorConfig(temperature=float("inf")), r"generator\.temperature.*inf"),
        (lambda: TwoStageConfig(first_stage_steps=0), r"two_stage\.first_stage_steps.*0"),
        (lambda: SinglePassConfig(replace_prob=1.0), r"single_pass\.replace_prob.*1"),
        (
            lambda: GeneratorConfig(kind="ngram", sampling="most_probable"),
            r"generator\.sampling.*categorical",
        ),
        (lambda: GeneratorConfig(kind="ngram", temperature_end=0.5), r"generator\.temperature_end.*None"),
        (lambda: GeneratorConfig(temperature_end=0.0), r"generator\.temperature_end.*0"),
        (lambda: GeneratorConfig(ngram_tokens=0), r"generator\.ngram_tokens.*0"),
        (lambda: PretrainConfig(discriminator_weight_start=-1.0), "discriminator_weight_start.*-1"),
        (lambda: PretrainConfig(discriminator_weight_ramp=0.0), "discriminator_weight_ramp.*0"),
        (
            lambda: PretrainConfig(objective="mlm", correction="proposed"),
            "correction.*proposed.*electra_15",
        ),
        (
            lambda: PretrainConfig(objective="mlm", discriminator_head="with_cls"),
            "discriminator_head.*with",
        ),
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
        ("two_stage", GeneratorConfig(), "sharing.*embeddings.*none"),
        ("two_stage", GeneratorConfig(sharing="none"), r"width 0\.25.*1"),
        ("two_stage", GeneratorConfig(kind="uniform"), "kind.*uniform.*mlm"),
        ("two_stage", GeneratorConfig(kind="ngram"), "kind.*ngram.*mlm"),
        ("adversarial", GeneratorConfig(kind="ngram"), "kind.*ngram.*mlm"),
        ("electric", GeneratorConfig(kind="ngram"), "kind.*ngram.*two_tower"),
        ("single_pass", GeneratorConfig(), "kind.*mlm.*uniform, unigram or ngram"),
        ("single_pass", GeneratorConfig(kind="unigram", temperature=2.0), "temperature.*2.*1"),
        ("adversarial", GeneratorConfig(kind="uniform"), "kind.*uniform.*mlm"),
        ("adversarial", GeneratorConfig(sampling_dropout="off"), "sampling_dropout.*off.*on"),
        ("electric", GeneratorConfig(), "kind.*mlm.*two_tower"),
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
