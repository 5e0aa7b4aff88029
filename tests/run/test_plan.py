import dataclasses
import json

import pytest

from electra import config
from electra.errors import InputError
from electra.pretraining.config import PretrainRunConfig
from electra.pretraining.plan import PlanConfig, make_plans
from electra.run.plan import main


def plan_of(*arguments):
    (only,) = make_plans(config.read(PlanConfig, arguments, prog="electra plan"))
    return only


def printed(capsys, *arguments):
    main(arguments)
    return capsys.readouterr().out


@pytest.mark.slow
def test_electra_small_as_in_the_paper():
    plan = plan_of("--hardware", "V100")
    assert sum(plan.needs.parameters.values()) == 14_196_219
    assert plan.needs.paper_flops == pytest.approx(1.2937e18, rel=0.01)
    assert plan.needs.flops == pytest.approx(1.15e18, rel=0.01)
    assert plan.needs.tokens == 128 * 128 * 1_000_000
    # 4 days in the paper.
    assert 1 < plan.needs.seconds / 86400 < 8
    assert plan.needs.cost == pytest.approx(plan.needs.seconds / 3600 * plan.machine.price)
    assert plan.needs.disk == 12 * 14_196_219 * 4


def test_muon_keeps_one_moment_of_the_layers_matrices():
    adam, muon = (plan_of("--hardware", "V100", "--train.optimizer", name) for name in ("adamw", "muon"))
    # 12 layers: the discriminator's of width 256, the generator's of a quarter of it, with heads of 64.
    matrices = 12 * sum(4 * width**2 + 2 * width * 4 * width for width in (256, 64))
    assert adam.needs.memory.optimizer - muon.needs.memory.optimizer == 4 * matrices
    assert adam.needs.disk - muon.needs.disk == 4 * matrices * 4


@pytest.mark.slow
def test_more_devices_are_faster_but_not_quite_as_many_times():
    one, four = (plan_of("--model.size", "tiny", "--hardware", "A100", "--devices", n) for n in ("1", "4"))
    assert 3 < one.needs.seconds / four.needs.seconds < 4
    assert four.work.rows_at_once == one.work.rows_at_once / 4
    assert four.needs.cost > one.needs.cost


def test_nodes_send_over_their_network():
    words = ("--model.size", "tiny", "--hardware", "A100", "--devices", "2", "--nodes", "2")
    table, fast, slow = (
        plan_of(*words, *more)
        for more in ((), ("--bandwidth", "400"), ("--bandwidth", "4", "--latency", "20"))
    )
    assert (table.machine.devices, table.machine.nodes, table.work.rows_at_once) == (4, 2, 16)
    # The table's 400 Gbit/s, of which 80 % are reached.
    assert table.needs == fast.needs
    assert table.machine.link.bandwidth == pytest.approx(0.8 * 400e9 / 8)
    sent = fast.needs.communication
    assert sent.sent == pytest.approx(2 * 3 / 4 * 4 * sum(fast.needs.parameters.values()))
    assert 0 < sent.waited < sent.seconds < slow.needs.communication.seconds
    assert slow.needs.seconds > 2 * fast.needs.seconds
    assert slow.needs.seconds == pytest.approx(
        slow.work.steps * (slow.needs.computing + slow.needs.communication.waited)
    )
    assert slow.needs.computing == fast.needs.computing


def test_fsdp_divides_what_is_kept_and_sends_more():
    words = ("--model.size", "tiny", "--hardware", "A100", "--nodes", "4")
    whole, parts = (plan_of(*words, "--train.parallel", way) for way in ("ddp", "fsdp"))
    for key in ("weights", "gradients", "optimizer"):
        assert getattr(parts.needs.memory, key) == getattr(whole.needs.memory, key) // 4
    assert parts.needs.memory.activations == whole.needs.memory.activations
    # Layers are gathered twice and scattered once, the rest gathered and scattered once.
    layers, total = parts.model.weights.layers, parts.model.weights.total
    assert parts.needs.communication.sent == pytest.approx(3 / 4 * 4 * (2 * total + layers))
    divided = plan_of(*words, "--train.parallel", "fsdp", "--train.micro_batch", "8")
    assert divided.needs.memory.gradients == whole.needs.memory.gradients
    assert divided.needs.communication.sent == pytest.approx(3 / 4 * 4 * (3 * total + 2 * layers))


def test_the_share_of_the_peak_can_be_given():
    slow, fast = (
        plan_of("--model.size", "tiny", "--hardware", "A100", "--achievable", share)
        for share in ("0.1", "0.2")
    )
    assert slow.needs.seconds == pytest.approx(2 * fast.needs.seconds)


@pytest.mark.parametrize(
    ("budget", "steps"),
    [("--train.steps=7", 7), ("--train.max_tokens=81920", 10), ("--train.max_time=1s", None)],
)
def test_the_budget_that_is_used_up_first_counts(budget, steps):
    plan = plan_of("--model.size", "tiny", "--hardware", "A100", "--train.batch_size=64", budget)
    if steps is None:
        assert plan.needs.seconds == pytest.approx(1, rel=0.02)
        assert plan.work.steps < 10_000
    else:
        assert plan.work.steps == steps


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "electra_15", "replace_mlm", "all_tokens_mlm"])
def test_other_objectives(objective):
    electra, other = (
        plan_of("--model.size", "tiny", "--hardware", "A100", "--objective", name, "--generator.width", "1")
        for name in ("electra", objective)
    )
    assert other.needs.flops > 0
    assert (other.needs.flops < electra.needs.flops) == (objective == "mlm")
    assert (other.needs.paper_flops is None) == (objective in ("replace_mlm", "all_tokens_mlm"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ngram", "unigram", "uniform"])
def test_one_pass_costs_as_much_as_masked_language_modelling(kind):
    words = ("--model.size", "tiny", "--hardware", "A100")
    mlm = plan_of(*words, "--objective", "mlm")
    plain, correcting = (
        plan_of(*words, "--objective", "single_pass", "--generator.kind", kind, "--correction", correction)
        for correction in ("none", "proposed")
    )
    # The detecting head is a small part of the whole.
    assert mlm.needs.flops < plain.needs.flops < 1.1 * mlm.needs.flops
    assert plain.needs.flops < correcting.needs.flops
    assert plain.needs.paper_flops is None
    assert plain.needs.parameters.keys() == {"generator", "generator_head", "discriminator_head"}


@pytest.mark.slow
def test_a_micro_batch_that_fits_is_found():
    asked = ("--model.size", "base", "--hardware", "V100", "--train.steps", "10")
    whole, fitting = plan_of(*asked), plan_of(*asked, "--train.micro_batch", "auto")
    assert whole.needs.memory.total > whole.machine.memory
    assert fitting.needs.memory.total < 0.9 * fitting.machine.memory
    assert fitting.needs.seconds == whole.needs.seconds


def test_this_machine_is_measured(capsys):
    out = printed(capsys, "--model.size", "tiny", "--train.steps", "10", "--probe_seconds", "0.05")
    assert "1 x this" in out
    assert "--price_per_hour" in out
    assert "50.0%" in out


def test_the_table_says_what_it_rests_on(capsys, tmp_path):
    file = tmp_path / "plan.json"
    asked = ("--model.size", "tiny", "--hardware", "H100", "--devices", "8", "--train.steps", "1000")
    out = printed(capsys, *asked, "--price_per_hour", "3", "--json", str(file))
    for words in (
        "8 x H100",
        "Assumptions",
        "16-bit peak",
        "80%",
        "3 per hour",
    ):
        assert words in out
    (plan,) = json.loads(file.read_text())["plans"]
    assert plan["work"]["steps"] == 1000
    assert plan["memory_total"] > plan["needs"]["memory"]["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [("--budget_time", "2h"), ("--budget_money", "50")])
def test_what_fits_into_a_budget(capsys, budget, tmp_path):
    file = tmp_path / "plan.json"
    out = printed(capsys, "--hardware", "A100", *budget, "--json", str(file))
    plans = json.loads(file.read_text())["plans"]
    assert [plan["size"] for plan in plans] == ["tiny", "small", "base", "large"]
    for plan in plans:
        spent = plan["needs"]["seconds"] / 7200 if "2h" in budget else plan["needs"]["cost"] / 50
        assert 0.95 < spent <= 1
    taken = "small" if "2h" in budget else "base"
    assert f"electra pretrain --model.size {taken} --train.steps" in out


def test_a_budget_too_small_for_everything_says_so(capsys):
    out = printed(capsys, "--hardware", "A100", "--budget_time", "1s")
    assert "electra pretrain --model.size tiny" in out


def test_a_file_of_a_run_can_be_given(tmp_path):
    run_keys = {entry.name for entry in dataclasses.fields(PretrainRunConfig)}
    assert run_keys <= {entry.name for entry in dataclasses.fields(PlanConfig)}
    file = tmp_path / "config.yaml"
    file.write_text(
        "model: {size: tiny}\nseed: 3\nlog: {log_every: 7}\ntrain: {steps: 5, learning_rate: 1e-4}\n"
    )
    plan = plan_of("--config", str(file), "--hardware", "A100")
    assert (plan.size, plan.work.steps, plan.work.batch_size) == ("tiny", 5, 64)


def test_rows_and_vocabulary_come_from_the_data(tmp_path):
    from electra import files

    facts = {
        "splits": {"train": {"tokens": 600, "rows": 10}},
        "seq_length": 80,
        "tokenizer": {"vocab_size": 99},
    }
    files.write_manifest(tmp_path, {"kind": "dataset", **facts})
    plan = plan_of(
        "--model.size", "tiny", "--hardware", "A100", "--data", str(tmp_path), "--train.steps", "1"
    )
    assert (plan.work.length, plan.work.fill, plan.model.encoder.vocab_size) == (80, 0.75, 99)
    assert plan.needs.tokens == 64 * 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "K80"], "hardware.*'K80'.*V100"),
        (["--budget_money", "5", "--probe_seconds", "0.01", "--model.size", "tiny"], "--price_per_hour"),
        (["--budget_time", "soon"], "budget_time.*'soon'"),
        (["--devices", "0"], r"devices.*\b0\b"),
        (["--nodes", "0"], r"nodes.*\b0\b"),
        (["--nodes", "2", "--bandwidth", "0"], r"bandwidth.*\b0"),
        (["--nodes", "2", "--bandwidth", "nan"], "bandwidth.*nan"),
        (["--nodes", "2", "--latency", "-1"], "latency.*-1"),
        (["--bandwidth", "10"], "bandwidth.*--nodes"),
        (["--hardware", "A100", "--nodes", "3", "--model.size", "tiny"], "batch_size.*64.*3 devices"),
        (["--price_per_hour", "-1"], "price_per_hour.*-1"),
        (["--hardwear", "V100"], "'hardware'"),
    ],
)
def test_bad_usage_says_the_way_out(arguments, message):
    with pytest.raises(InputError, match=message):
        main(arguments)
