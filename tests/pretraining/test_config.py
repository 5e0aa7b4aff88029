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
        (lambda: GeneratorConfig(width=0.0), r"generator\.width is 0\.0"),
        (lambda: GeneratorConfig(temperature=float("inf")), r"generator\.temperature is inf"),
        (lambda: TwoStageConfig(first_stage_steps=0), r"two_stage\.first_stage_steps is 0"),
        (lambda: SinglePassConfig(replace_prob=1.0), r"single_pass\.replace_prob is 1"),
        (
            lambda: GeneratorConfig(kind="ngram", sampling="most_probable"),
            r"generator\.sampling.*categorical",
        ),
        (lambda: GeneratorConfig(kind="ngram", temperature_end=0.5), r"generator\.temperature_end.*None"),
        (lambda: GeneratorConfig(temperature_end=0.0), r"generator\.temperature_end is 0"),
        (lambda: GeneratorConfig(ngram_tokens=0), r"generator\.ngram_tokens is 0"),
        (lambda: PretrainConfig(discriminator_weight_start=-1.0), "discriminator_weight_start is -1"),
        (lambda: PretrainConfig(discriminator_weight_ramp=0.0), "discriminator_weight_ramp is 0"),
        (
            lambda: PretrainConfig(objective="mlm", correction="proposed"),
            "correction is proposed.*electra_15",
        ),
        (
            lambda: PretrainConfig(objective="mlm", discriminator_head="with_cls"),
            "discriminator_head is with",
        ),
        (lambda: AdversarialConfig(baseline_decay=1.0), r"adversarial\.baseline_decay is 1\.0"),
        (lambda: PretrainConfig(discriminator_weight=-1.0), r"discriminator_weight is -1\.0"),
    ],
)
def test_a_bad_value_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "generator", "message"),
    [
        ("two_stage", GeneratorConfig(), "sharing is embeddings.*set it to none"),
        ("two_stage", GeneratorConfig(sharing="none"), r"width 0\.25.*set both to 1"),
        ("two_stage", GeneratorConfig(kind="uniform"), "kind is uniform.*set it to mlm"),
        ("two_stage", GeneratorConfig(kind="ngram"), "kind is ngram.*set it to mlm"),
        ("adversarial", GeneratorConfig(kind="ngram"), "kind is ngram.*set it to mlm"),
        ("electric", GeneratorConfig(kind="ngram"), "kind is ngram.*set it to two_tower"),
        ("single_pass", GeneratorConfig(), "kind is mlm.*uniform, unigram or ngram"),
        ("single_pass", GeneratorConfig(kind="unigram", temperature=2.0), "temperature is 2.*set it to 1"),
        ("adversarial", GeneratorConfig(kind="uniform"), "kind is uniform.*set it to mlm"),
        ("adversarial", GeneratorConfig(sampling_dropout="off"), "sampling_dropout is off.*set it to on"),
        ("electric", GeneratorConfig(), "kind is mlm.*set it to two_tower"),
        (
            "electric",
            GeneratorConfig(kind="two_tower", temperature=2.0),
            r"temperature is 2\.0.*set it to 1\.0",
        ),
    ],
)
def test_an_objective_says_what_it_needs(toy, name, generator, message):
    with pytest.raises(InputError, match=message):
        toy.objective(name, generator=generator)
