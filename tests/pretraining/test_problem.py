import dataclasses
import math
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.sizes import EncoderConfig, generator_config
from electra.pretraining import cost
from electra.pretraining.config import (
    GeneratorConfig,
    ModelConfig,
    PretrainConfig,
    network_keys,
    paper_values,
)
from electra.pretraining.masking import MaskingConfig
from electra.pretraining.objectives import OBJECTIVES, build_objective
from electra.pretraining.step import PretrainProblem, Share, collapse_warning, show_row
from electra.text.batches import Batch
from electra.train.distributed import World
from electra.train.loop import LoopConfig, training_steps
from electra.train.optim import OptimizerConfig, build_optimizer
from electra.train.schedule import Budget, ScheduleConfig
from electra.train.state import TrainState

pytestmark = pytest.mark.numeric


class ToyBatches:
    """Batches of the toy language: as much of `text.batches.Batches` as a problem uses."""

    def __init__(self, toy, batch_size, *, width=16):
        self.toy, self.batch_size, self.width = toy, batch_size, width

    def part(self, step, *, rank, world_size):
        share = self.batch_size // world_size
        batch = self.toy.sentences(self.batch_size, seed=step)
        rows = slice(rank * share, (rank + 1) * share)
        return Batch(
            row_ids_B=batch.row_ids_B[rows],
            input_ids_BL=batch.input_ids_BL[rows, : self.width],
            token_type_ids_BL=batch.token_type_ids_BL[rows, : self.width],
            lengths_B=batch.lengths_B[rows].clip(max=self.width),
        )


def problem(toy, *, share=None, objective=None, **changes):
    objective = objective or toy.objective(**changes)
    return PretrainProblem(
        objective=objective,
        module=objective,
        train=ToyBatches(toy, 12),
        valid=ToyBatches(toy, 6),
        num_valid=3,
        seed=0,
        share=share or Share(),
        device=torch.device("cpu"),
        flops_per_token=1.0,
        add=dict,
        tokens=lambda ids: [str(number) for number in ids],
    )


def run(work, objective):
    outputs = [part(objective) for part in work.parts]
    return sum(loss.item() for loss, _ in outputs), [part.rows for part in work.parts]


def test_micro_batches_add_up_to_the_batch(toy):
    objective = toy.objective()
    whole = problem(toy, objective=objective).begin(step=0, batch_number=0)
    parts = problem(toy, objective=objective, share=Share(micro_batch=5)).begin(step=0, batch_number=0)
    (loss, rows), (other, other_rows) = run(whole, objective), run(parts, objective)
    assert (rows, other_rows) == ([12], [5, 5, 2])
    assert loss == pytest.approx(other, rel=1e-5)
    assert whole.tokens == parts.tokens == int(toy.sentences(12, seed=0).lengths_B.sum())


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("micro_batch", [None, 5])
def test_rows_are_masked_once_and_by_the_thread_as_they_would_be_here(
    toy, world_size, micro_batch, monkeypatch
):
    objective = toy.objective()
    mask, threads = objective.mask, []

    def noted(inputs, random):
        threads.append((threading.current_thread().name, random.step, random.first_row))
        return mask(inputs, random)

    monkeypatch.setattr(objective, "mask", noted)
    for rank in range(world_size):
        share = Share(rank=rank, world_size=world_size, micro_batch=micro_batch)
        shared = problem(toy, objective=objective, share=share)
        works = {number: shared.begin(step=number, batch_number=number) for number in (2, 3, 4)}
        shared.close()
        for number, work in works.items():
            rows = shared.train.part(number, rank=rank, world_size=world_size)
            assert sum(part.rows for part in work.parts) == len(rows.lengths_B) == 12 // world_size
            for part in work.parts:
                first = part.random.first_row - rank * len(rows.lengths_B)
                assert torch.equal(
                    part.inputs.input_ids_BL,
                    torch.from_numpy(rows.input_ids_BL[first : first + part.rows]),
                )
                expected = vars(mask(part.inputs, part.random))
                assert all(torch.equal(tensor, expected[name]) for name, tensor in vars(part.masked).items())
    assert {thread for thread, *_ in threads} == {"electra-prefetch"}
    assert len(set(threads)) == len(threads)


def test_rows_are_masked_with_one_core_beside_the_step_that_has_all(toy, two_threads, monkeypatch):
    objective = toy.objective()
    mask, threads = objective.mask, []

    def noted(inputs, random):
        threads.append(torch.get_num_threads())
        return mask(inputs, random)

    monkeypatch.setattr(objective, "mask", noted)
    prepared = problem(toy, objective=objective)
    prepared.begin(step=0, batch_number=0)
    prepared.close()
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2


class Reads(TorchDispatchMode):
    """Notes operations that end in a number on the host or in a shape that depends on one."""

    def __init__(self, allowed):
        super().__init__()
        self.allowed, self.seen = allowed, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        reading = (
            "_local_scalar_dense",
            "nonzero",
            "masked_select",
            "bincount",
            "unique",
            "equal",
            "is_nonzero",
        )
        name = function.overloadpacket.__name__
        # A mask as an index is `nonzero` within the operation.
        is_masked = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if (name.startswith(reading) or is_masked) and args[0].data_ptr() not in self.allowed:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_is_read_once(toy, name, padded, monkeypatch):
    objective = toy.objective(name, dropout=0.1)
    trained = dataclasses.replace(
        problem(toy, objective=objective, share=Share(micro_batch=5)),
        train=ToyBatches(toy, 12, width=16 if padded else 8),
    )
    optimizer = build_optimizer(OptimizerConfig(), objective.named_parameters())
    loop = LoopConfig(
        schedule=ScheduleConfig(),
        clip_norm=1.0,
        budget=Budget(steps=10),
        device=torch.device("cpu"),
        precision="fp32",
    )
    steps = training_steps(TrainState(model=objective, optimizer=optimizer), trained, loop, World())
    lists, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: lists.append(tolist(tensor)) or lists[-1])
    # The flag of two_stage lies on the host.
    allowed = {objective.second_stage.data_ptr()} if name == "two_stage" else set()
    for number in range(2):
        lists.clear()
        with Reads(allowed) as reads:
            step = next(steps)
        assert not reads.seen
        counts, values = lists
        assert counts[1] == step.tokens == toy_tokens(toy, number, padded)
        assert values == [step.loss, step.gradient_norm]
    trained.close()


def toy_tokens(toy, number, padded):
    return int(toy.sentences(12, seed=number).lengths_B.sum()) if padded else 12 * 8


def test_the_order_of_batches_may_jump(toy):
    jumping, objective = problem(toy), toy.objective()
    for number in (0, 1, 7, 8, 3):
        fresh = problem(toy, objective=objective)
        rows = [part.inputs.input_ids_BL for part in jumping.begin(step=0, batch_number=number).parts]
        expected = [part.inputs.input_ids_BL for part in fresh.begin(step=0, batch_number=number).parts]
        assert all(torch.equal(left, right) for left, right in zip(rows, expected, strict=True))
    jumping.close()


def test_held_out_rows_are_masked_alike_every_time(toy):
    trained = problem(toy)
    trained.objective.eval()
    first, second = ([dict(sums) for sums in trained.evaluate()] for _ in range(2))
    assert len(first) == 3
    for left, right in zip(first, second, strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert trained.samples() == trained.samples()


def test_samples_show_each_view_of_a_row(toy):
    row = problem(toy).samples()[0]
    length = len(row["original"])
    assert {name: len(values) for name, values in row.items()} == dict.fromkeys(row, length)
    assert row.keys() == {"original", "masked", "corrupted", "replaced", "suspicion"}
    assert problem(toy, name="mlm").samples()[0].keys() == {"original", "masked"}
    assert all(0 <= value <= 1 for value in row["suspicion"])


def test_a_shown_row_names_what_was_replaced():
    row = {
        "original": ["a", "b"],
        "masked": ["a", "[MASK]"],
        "corrupted": ["a", "c"],
        "replaced": [0, 1],
        "suspicion": [0.1, 0.75],
    }
    assert "b -> c (suspicion 0.75)" in show_row(row)
    assert "nothing" in show_row({**row, "replaced": [0, 0]})


HEALTHY = {"discriminator_auc": 0.8, "discriminator_recall": 0.3, "replaced_fraction": 0.1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"discriminator_auc": 0.5, "discriminator_recall": 0.0}, "calls nothing replaced"),
        ({"discriminator_auc": 0.5, "discriminator_recall": math.nan}, "calls nothing replaced"),
        ({"replaced_fraction": 0.001}, "nothing to learn"),
        ({"discriminator_auc": 0.5, "discriminator_recall": 0.2}, None),
    ],
)
def test_collapse_is_told_with_its_cures(changes, words):
    said = collapse_warning({**HEALTHY, **changes}, step=5000, progress=0.5)
    assert (said is None) == (words is None)
    if words:
        assert words in said
        assert "--train.learning_rate" in said
    assert collapse_warning({**HEALTHY, **changes}, step=5000, progress=0.01) is None
    assert collapse_warning({**HEALTHY, **changes}, step=50, progress=0.5) is None


def test_stages_are_phases(toy):
    assert problem(toy).phase(0) == problem(toy).phase(10**6)
    staged = problem(toy, name="two_stage")
    first = staged.objective.config.two_stage.first_stage_steps
    assert staged.phase(0) == staged.phase(first - 1) != staged.phase(first)


@pytest.mark.slow
def test_flops_grow_with_what_an_objective_computes():
    encoder = EncoderConfig.preset("small")
    flops = {
        name: cost.flops_per_token(PretrainConfig(objective=name), encoder, length=128)
        for name in ("mlm", "electra", "replace_mlm", "all_tokens_mlm")
    }
    assert flops["electra"] < flops["replace_mlm"] < flops["all_tokens_mlm"]
    # Encoder 12 x 12 x 256² weights, six operations each: 57 MFLOP, and attention, embeddings and generator.
    assert 57e6 < flops["mlm"] < flops["electra"] < 90e6
    unigram = PretrainConfig(generator=GeneratorConfig(kind="unigram"))
    assert cost.flops_per_token(unigram, encoder, length=128) < flops["electra"]


def test_parameters_are_counted_by_part(toy):
    objective = toy.objective()
    counts = cost.parameters_by_part(objective)
    assert sum(counts.values()) == sum(weight.numel() for weight in objective.parameters())
    assert counts.keys() == {"generator", "generator_head", "discriminator", "discriminator_head"}


def test_a_model_is_its_size_and_what_differs():
    changes = {"num_hidden_layers": 3, "dropout": 0.0, "initializer_range": 0.5}
    encoder = ModelConfig(size="base", **changes).encoder(vocab_size=100)
    assert (encoder.hidden_size, encoder.num_hidden_layers, encoder.vocab_size) == (768, 3, 100)
    assert encoder.hidden_dropout_prob == encoder.attention_probs_dropout_prob == 0
    assert encoder.initializer_range == 0.5


def test_a_modern_model_has_defaults_of_its_own():
    encoder = ModelConfig(size="tiny", backbone="modern").encoder(vocab_size=100)
    assert (encoder.position_embedding_type, encoder.query_key_norm) == ("rotary", "rms")
    assert encoder.intermediate_size == 344
    given = ModelConfig(size="tiny", backbone="modern", query_key_norm="none", intermediate_size=100)
    encoder = given.encoder(vocab_size=100)
    assert (encoder.query_key_norm, encoder.intermediate_size) == ("none", 100)
    for wrong in ({"query_key_norm": "rms"}, {"backbone": "modern", "position_embedding_type": "alibi"}):
        with pytest.raises(InputError, match=r"^model: (query_key_norm|position_embedding_type) is "):
            ModelConfig(**wrong).encoder(vocab_size=100)


def test_keys_of_a_modern_network_make_it_again():
    model = ModelConfig(size="tiny", backbone="modern", num_hidden_layers=3, global_attention_every=3)
    large = model.encoder(vocab_size=100)
    small = generator_config(large, width=0.5)
    keys = network_keys({"discriminator": large, "generator": small}, sharing="embeddings")
    assert keys["model.backbone"] == "modern"
    names = {key.removeprefix("model."): value for key, value in keys.items() if key.startswith("model.")}
    assert ModelConfig(**names).encoder(vocab_size=100) == large


@pytest.mark.parametrize("spread", [0.02, 0.2])
def test_first_weights_spread_as_told(toy, spread):
    encoder = dataclasses.replace(toy.encoder, initializer_range=spread)
    objective = build_objective(PretrainConfig(), encoder, toy.tokens, seq_length=16, seed=0)
    for network in (objective.generator, objective.discriminator):
        weights = network.layers[0].feed_forward.inner.weight
        # Cut off at two standard deviations, which leaves 0.88 of them.
        assert weights.std().item() == pytest.approx(0.88 * spread, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"backbone": "modern"},
        {"backbone": "modern", "global_attention_every": 3, "local_attention_window": 16},
    ],
    ids=["electra", "modern", "windows"],
)
def test_flops_of_any_number_of_layers_are_as_counted(layers, changes):
    config = EncoderConfig.preset("tiny", num_hidden_layers=layers, **changes)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Encoder(config).eval()(torch.zeros(1, 64, dtype=torch.long)).sum().backward()
    mlm = PretrainConfig(objective="mlm", masking=MaskingConfig(mask_prob=1e-12))
    found = cost.flops_per_token(mlm, config, length=64)
    assert found == pytest.approx(counter.get_total_flops() / 64, rel=1e-9)


def test_the_papers_warm_up_is_ten_thousand_steps_at_the_papers_budget():
    for size in ("small", "base", "large"):
        values = paper_values(size)
        assert values["train.warmup_fraction"] * values["train.steps"] == pytest.approx(10_000)


def test_the_best_is_told_on_the_fixed_set_where_there_is_one(toy):
    detecting = problem(toy)
    assert detecting.error({"loss": 25.0, "fixed_auc": 0.7}) == pytest.approx(0.3)
    assert detecting.error({"loss": 25.0, "fixed_auc": math.nan}) == 25.0
    assert detecting.error({"loss": 5.0}) == 5.0
    assert math.isnan(detecting.error({}))
