import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.model.names import layer_depth
from electra.seeds import torch_generator
from electra.tasks.batches import TaskMixture, TrainBatches, collate
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.tagging import Tagging
from electra.tasks.model import TaskModel
from electra.tasks.step import FinetuneProblem, HeldOut, Share, flops_per_token
from electra.train.checkpoint import CheckpointConfig
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.loop import LoopConfig
from electra.train.optim import OptimizerConfig, build_optimizer
from electra.train.schedule import Budget, ScheduleConfig
from electra.train.session import LogConfig, Session
from electra.train.state import TrainState

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
MOOD = Classification(("bad", "good"), ("mcc", "accuracy"))
BATCH = 8


def choices_of(opinions):
    """The same texts as questions with two or three choices."""
    return [
        ChoiceExample(
            id=opinion.id,
            where=opinion.where,
            prompt=opinion.text,
            choices=("bad", "good", "the film")[: 2 + int(opinion.id) % 2],
            label=opinion.label,
        )
        for opinion in opinions
    ]


@pytest.fixture
def build(tiny_config, tokenizer, make_opinions):
    """`build(tasks=("mood",), share=Share(), dropout=0.1)`: a problem with 29 opinions to train on."""

    def build(*, tasks=("mood",), share=None, dropout=0.1, seed=0, held=("mood",), train=29, mask_prob=0.0):
        config = dataclasses.replace(
            tiny_config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
        encoder = Encoder(config)
        initialise(encoder, std=0.05, generator=torch_generator(0, "problem"))
        families = {"mood": MOOD, "choice": MultipleChoice()}
        examples = {"mood": make_opinions(train), "choice": choices_of(make_opinions(20, seed=2))}
        dev = {"mood": make_opinions(12, seed=5), "choice": choices_of(make_opinions(12, seed=6))}
        mains = {"mood": "mcc", "choice": "accuracy"}
        batches = {
            name: TrainBatches(
                families[name].rows(examples[name], tokenizer, max_length=32),
                task=name,
                seed=seed,
                batch_size=BATCH,
            )
            for name in tasks
        }
        model = TaskModel(encoder, {name: families[name] for name in tasks}, seed=seed)
        return FinetuneProblem(
            model=model,
            module=model,
            train=TaskMixture(batches, seed=seed),
            held_out=[
                HeldOut(
                    task=name,
                    split="dev",
                    examples=dev[name],
                    rows=families[name].rows(dev[name], tokenizer, max_length=32),
                    main_score=mains[name],
                )
                for name in held
            ],
            seed=seed,
            share=share or Share(),
            device=CPU,
            tokenizer=tokenizer,
            flops_per_token=1.0,
            mask_prob=mask_prob,
        )

    return build


def gradients(problem, work):
    """Sum of the losses of all parts, and the gradients."""
    problem.model.zero_grad()
    loss = sum((part(problem.module)[0] for part in work.parts), torch.zeros(()))
    loss.backward()
    return loss.item(), [
        weight.grad.clone() for weight in problem.model.parameters() if weight.grad is not None
    ]


@pytest.mark.parametrize("mask_prob", [0.0, 0.3])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_micro_batches_and_processes_add_up_to_the_batch(build, number, mask_prob):
    whole = build(dropout=0.0, mask_prob=mask_prob)
    loss, expected = gradients(whole, whole.begin(step=0, batch_number=number))
    shares = [[Share(micro_batch=3)], [Share(rank=rank, world_size=3, micro_batch=2) for rank in range(3)]]
    for group in shares:
        results = []
        for share in group:
            part = build(dropout=0.0, share=share, mask_prob=mask_prob)
            work = part.begin(step=0, batch_number=number)
            results.append(gradients(part, work))
            assert work.tokens == whole.begin(step=0, batch_number=number).tokens
        assert sum(result[0] for result in results) == pytest.approx(loss, rel=1e-5)
        for tensors in zip(expected, *(result[1] for result in results), strict=True):
            torch.testing.assert_close(sum(tensors[1:]), tensors[0], rtol=1e-4, atol=1e-6)


def test_tokens_are_hidden_while_training_and_anew_in_each_epoch(build, tokenizer):
    problem, plain = build(mask_prob=0.3), build()

    def ids(problem, number):
        (part,) = problem.begin(step=0, batch_number=number).parts
        return np.concatenate([row.input_ids for unit in part.units for row in unit])

    hidden, shown = ids(problem, 0), ids(plain, 0)
    is_hidden = hidden != shown
    assert set(hidden[is_hidden].tolist()) == {tokenizer.mask_id}
    assert not np.isin(shown[is_hidden], [tokenizer.cls_id, tokenizer.sep_id]).any()
    assert 0.1 < is_hidden.mean() < 0.5
    np.testing.assert_array_equal(ids(problem, 0), hidden)
    again = [
        sum((ids(problem, number) == tokenizer.mask_id).sum() for number in range(start, start + 4))
        for start in (0, problem.train.num_batches)
    ]
    assert again[0] != again[1]
    for row in (row for rows in problem.train.tasks["mood"][0] for row in rows):
        assert tokenizer.mask_id not in row.input_ids


def test_a_batch_is_the_mean_over_its_units(build):
    problem = build(dropout=0.0)
    sizes = set()
    for number in range(problem.train.num_batches):
        (part,) = problem.begin(step=0, batch_number=number).parts
        loss, sums = part(problem.module)
        total, count = sums["mood/loss"].tolist()
        assert count == part.rows
        assert loss.item() == pytest.approx(total / count, rel=1e-6)
        sizes.add(part.rows)
    assert sizes == {8, 5}


def test_a_process_without_units_keeps_up(build):
    # 25 units make batches of 8, 8, 8 and 1: one process of two has nothing of the last kind.
    problems = [build(train=25, share=Share(rank=rank, world_size=2)) for rank in range(2)]
    counts, losses = [], []
    for number in range(problems[0].train.num_batches):
        parts = [problem.begin(step=0, batch_number=number).parts for problem in problems]
        assert len(parts[0]) == len(parts[1]) == 1
        counts.append(
            [int(sums["mood/loss"][1]) for (part,) in parts for _, sums in [part(problems[0].module)]]
        )
        losses.append([part(problems[0].module)[0].item() for (part,) in parts])
    alone = counts.index(sorted(counts)[0])
    assert sorted(counts) == [[0, 1], [4, 4], [4, 4], [4, 4]]
    assert losses[alone][0] == 0
    assert losses[alone][1] > 0


def test_dropout_depends_on_the_batch_and_the_units_only(build):
    problem, other = build(), build(seed=1)
    (first,), (same,), (later,) = (
        problem.begin(step=step, batch_number=number).parts for step, number in ((0, 0), (5, 0), (0, 4))
    )
    assert len({part(problem.module)[0].item() for part in (first, first, same)}) == 1
    assert first.dropout_seed != later.dropout_seed
    assert first.dropout_seed != other.begin(step=0, batch_number=0).parts[0].dropout_seed
    halves = build(share=Share(micro_batch=4)).begin(step=0, batch_number=0).parts
    second = build(share=Share(rank=1, world_size=2)).begin(step=0, batch_number=0).parts
    assert [part.dropout_seed for part in halves] == [first.dropout_seed, second[0].dropout_seed]


def test_evaluation_gives_losses_and_scores(build):
    problem = build()
    problem.max_tokens = 64
    problem.model.eval()
    totals = {}
    for sums in problem.evaluate():
        for name, value in sums.items():
            totals[name] = totals.get(name, 0) + value
    metrics = problem.summarise(totals)
    assert metrics.keys() == {"loss", "mcc", "accuracy"}
    assert totals["loss"][1] == 12
    assert metrics["loss"] == pytest.approx(math.log(2), abs=0.3)
    held = problem.held_out[0]
    judged = problem.samples()
    assert [sample["id"] for sample in judged] == [example.id for example in held.examples[:4]]
    assert judged[0]["original"][0] == "[CLS]"
    assert judged[0]["prediction"]["label"] in MOOD.labels()


def test_several_sets_are_told_apart(build):
    problem = build(tasks=("mood", "choice"), held=("mood", "choice"))
    problem.model.eval()
    names = {name for sums in problem.evaluate() for name in sums}
    assert names == {
        "loss", "mood/loss", "mood/mcc", "mood/accuracy", "choice/loss", "choice/accuracy",
    }  # fmt: skip
    assert problem.headlines == {"mood/mcc": "mood mcc", "choice/accuracy": "choice accuracy"}
    assert build().headlines == {"mcc": "mcc"}
    twice = build()
    twice.held_out = [twice.held_out[0], dataclasses.replace(twice.held_out[0], split="other")]
    assert list(twice.headlines) == ["mood/dev/mcc", "mood/other/mcc"]


def test_a_model_that_says_the_same_of_everything_is_noticed(build):
    problem = build()
    problem.model.eval()
    head = problem.model.head("mood").output
    torch.nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor([5.0, -5.0])
    list(problem.evaluate())
    assert problem.diagnose({}, step=1, progress=0.1) is None
    assert re.search(r"\b12\b.*\bmood\b.*'bad'", problem.diagnose({}, step=90, progress=0.9))
    head.weight.data.normal_(std=10, generator=torch_generator(0))
    # The mean logits, so that both classes are on either side of them.
    rows = problem.held_out[0].rows
    hidden_BD = torch.stack(
        [problem.model.encoder(collate([row], pad_id=0, device=CPU).input_ids_BL)[0, 0] for row in rows]
    )
    head.bias.data = -(hidden_BD @ head.weight.T).mean(dim=0)
    list(problem.evaluate())
    assert problem.diagnose({}, step=90, progress=0.9) is None


def test_an_undefined_score_is_no_number_and_is_explained(build, tokenizer):
    problem = build()
    family = Regression()
    examples = [dataclasses.replace(example, label=0.5) for example in problem.held_out[0].examples]
    rows = family.rows(examples, tokenizer, max_length=32)
    problem.model = TaskModel(problem.model.encoder, {"value": family}).eval()
    problem.held_out = [
        HeldOut(task="value", split="dev", examples=examples, rows=rows, main_score="pearson")
    ]
    (scores,) = [sums for sums in problem.evaluate() if "pearson" in sums]
    assert math.isnan(problem.summarise(scores)["pearson"])
    assert "pearson" in problem.diagnose({}, step=90, progress=0.9)


def test_flops_of_a_token(tiny_config, build):
    problem = build()
    rows = problem.train.tasks["mood"].rows
    weights = sum(weight.numel() for weight in Encoder(tiny_config).layers.parameters())
    tagger = TaskModel(Encoder(tiny_config), {"tags": Tagging(("A", "B"), "tokens")})
    # Six operations for each weight of the layers, and some more for attention and embeddings.
    assert 6 * weights < flops_per_token(tagger, rows) < 7.5 * weights
    # Of the last of two layers, classification wants keys and values: a sixth.
    assert 3.5 * weights < flops_per_token(problem.model, rows) < 5 * weights


def session(problem, folder, *, steps, stop_after=None, learning_rate=3e-3, evaluate_every=4):
    model = problem.model
    optimizer = build_optimizer(
        OptimizerConfig(layer_decay=0.8),
        model.named_parameters(),
        depth=lambda name: layer_depth(name, num_layers=2),
        num_layers=2,
    )
    schedule = ScheduleConfig(learning_rate=learning_rate, warmup_steps=2)
    made = Session(
        folder=folder,
        state=TrainState(model=model, optimizer=optimizer),
        problem=problem,
        loop=LoopConfig(
            schedule=schedule, clip_norm=1.0, budget=Budget(steps=steps), device=CPU, precision="fp32"
        ),
        log=LogConfig(log_every=1, evaluate_every=evaluate_every),
        checkpoint=CheckpointConfig(save_every=3 if steps < 10 else steps),
        health=HealthConfig(),
        world=World(),
        facts={},
        check_facts=lambda saved: None,
        on_start=lambda: None,
    )
    if stop_after is not None:
        end = problem.end

        def stop(sums):
            end(sums)
            if made.state.step == stop_after:
                raise KeyboardInterrupt

        problem.end = stop
    return made


def lines(folder):
    volatile = ("seconds", "tokens_per_second", "mfu")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in record.items() if key not in volatile}
        for record in records
        if record["kind"] != "event"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [("mood",), ("mood", "choice")])
def test_a_killed_run_goes_on_exactly(build, tmp_path, tasks):
    settings = {"tasks": tasks, "held": tasks, "share": Share(micro_batch=3)}
    whole = build(**settings)
    (tmp_path / "whole").mkdir()
    session(whole, tmp_path / "whole", steps=6).run()

    (tmp_path / "parts").mkdir()
    with pytest.raises(KeyboardInterrupt):
        session(build(**settings), tmp_path / "parts", steps=6, stop_after=4).run()
    rest = build(**settings)
    session(rest, tmp_path / "parts", steps=6).run()

    for (name, left), right in zip(
        whole.model.state_dict().items(), rest.model.state_dict().values(), strict=True
    ):
        assert torch.equal(left, right), name
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert len(lines(tmp_path / "whole")) == 8


@pytest.mark.slow
def test_it_learns(build, tmp_path):
    problem = build(train=200)
    session(problem, tmp_path, steps=50, learning_rate=5e-4, evaluate_every=50).run()
    trained, held_out = (
        [line for line in lines(tmp_path) if line["kind"] == kind] for kind in ("train", "valid")
    )
    assert trained[0]["loss"] == pytest.approx(math.log(2), abs=0.3)
    assert held_out[-1]["metrics"]["loss"] < 0.2
    assert held_out[-1]["metrics"]["accuracy"] == 1


def test_nothing_to_train_on_is_an_error(build):
    with pytest.raises(InputError, match=r"\bmood\b"):
        build(train=0)
