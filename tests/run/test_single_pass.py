"""`electra pretrain` beyond the paper: n-gram proposals, one pass, corrections, heads and schedules."""

import json
from itertools import pairwise

import pytest
import yaml

from electra import cli, files
from electra.errors import InputError
from electra.prediction.load import load
from electra.run import export

pytestmark = pytest.mark.numeric

ONE_PASS = {"objective": "single_pass", "generator__width": 1, "output_bias": "frequencies"}
CURES = {
    "correction": "proposed",
    "discriminator_head": "with_cls",
    "discriminator_weight_start": 1,
    "discriminator_weight_ramp": 0.5,
}

OWN = {"single_pass__proposals": "own", "correction": "proposed"}


@pytest.fixture(scope="module")
def one_pass(runs, tmp_path_factory):
    run = tmp_path_factory.mktemp("single") / "run"
    runs.pretrain(run, **ONE_PASS)
    return run


@pytest.mark.slow
def test_a_run_has_both_losses_and_is_loaded_with_both_heads(one_pass, runs):
    written = yaml.safe_load((one_pass / "config.yaml").read_text())
    assert written["generator"]["kind"] == "ngram"
    assert written["masking"]["mask_token_prob"] == 1.0
    assert written["discriminator_weight"] == 10
    for line in runs.lines(one_pass, "train"):
        found = line["metrics"]
        # Sums of some hundred terms in fp32.
        assert line["loss"] == pytest.approx(found["mlm_loss"] + 10 * found["discriminator_loss"], rel=1e-5)
    valid = runs.lines(one_pass, "valid")[-1]["metrics"]
    assert {"mlm_accuracy", "sampled_accuracy", "discriminator_auc", "fixed_auc"} <= valid.keys()
    assert 0 < valid["replaced_fraction"] < 0.2
    model = load(one_pass)
    assert model.abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    assert model.fill(["the old [MASK] was in a city"])[0]["masks"][0]["candidates"]
    assert len(model.detect(["the old river"])[0]["tokens"]) == 3
    manifest = files.read_manifest(one_pass / "final", kind="model")
    assert manifest["encoder"] == "discriminator"


def test_samples_show_masks_and_proposals_in_one_row(one_pass):
    lines = (one_pass / "samples.jsonl").read_text().splitlines()
    rows = json.loads(lines[-1])["rows"]
    for row in rows:
        for original, masked, corrupted, replaced in zip(
            row["original"], row["masked"], row["corrupted"], row["replaced"], strict=True
        ):
            assert replaced == (corrupted not in (original, "[MASK]"))
            assert (masked == "[MASK]") == (corrupted == "[MASK]")
    assert any("[MASK]" in row["corrupted"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {**ONE_PASS, **CURES},
        {"generator__kind": "ngram", "objective": "electra", **CURES},
        {**ONE_PASS, **OWN},
        {"generator__temperature": 2, "generator__temperature_end": 0.5, **CURES},
    ],
)
def test_stopped_and_continued_is_the_same(runs, tmp_path, interrupt, changes):
    runs.assert_continues_exactly(tmp_path, interrupt, **changes, train__steps=8, log__evaluate_every=4)


@pytest.mark.slow
@pytest.mark.parametrize("cures", [CURES, OWN])
def test_micro_batches_do_the_same_work(runs, tmp_path, cures):
    keys = {**ONE_PASS, **cures, "model__dropout": 0.0, "train__steps": 4}
    for name, rows in (("whole", 8), ("parts", 3)):
        runs.pretrain(tmp_path / name, train__micro_batch=rows, **keys)
    runs.assert_same_work(tmp_path / "whole", tmp_path / "parts", precision="fp32")


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 6])
def test_a_run_that_guesses_is_continued_between_the_two_times(runs, tmp_path, interrupt, steps):
    keys = {**ONE_PASS, **OWN, "train__steps": 10}
    runs.pretrain(tmp_path / "whole", **keys)
    interrupt(steps)
    runs.pretrain(tmp_path / "parts", code=cli.INTERRUPTED, **keys)
    runs.pretrain(tmp_path / "parts", **keys)
    assert runs.events(tmp_path / "parts", "resumed") == [steps + 1]
    runs.assert_same(tmp_path / "parts", tmp_path / "whole")
    assert load(tmp_path / "whole").abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    # Rows come twice in a row: as many tokens are in the first step as in the second.
    tokens = [0, *(line["tokens"] for line in runs.lines(tmp_path / "whole", "train"))]
    sizes = [after - before for before, after in pairwise(tokens)]
    assert sizes[0::2] == sizes[1::2]


@pytest.mark.slow
def test_a_head_that_sees_cls_is_kept_by_us_and_refused_for_transformers(runs, tmp_path):
    run = tmp_path / "run"
    runs.pretrain(run, train__steps=2, discriminator_head="with_cls")
    model = load(run)
    assert model.abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    one, two = (model.detect([text])[0]["tokens"][1]["replaced"] for text in ("the river", "the river was"))
    assert one != two
    manifest = files.read_manifest(run / "final", kind="model")
    assert "[CLS]" in manifest["obstacles"]["discriminator"]
    assert manifest["obstacles"]["generator"] is None
    words = ["--model", str(run), "--to", "transformers", "--out", str(tmp_path / "out")]
    with pytest.raises(InputError, match=r"\[CLS\].*--part encoder"):
        export.main(words)
    export.main([*words, "--part", "encoder"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "electra"
    # Another run that starts from it has the same head.
    for name, start in (("next", run), ("another", run / "final")):
        runs.pretrain(tmp_path / name, train__steps=1, start=start)
        written = yaml.safe_load((tmp_path / name / "config.yaml").read_text())
        assert written["discriminator_head"] == "with_cls"


def test_what_makes_no_sense_is_refused(runs, tmp_path, capsys):
    for changes, words in (
        ({"objective": "single_pass", "generator__kind": "mlm"}, "generator.kind is mlm"),
        ({**ONE_PASS, "train__optimizers": "separate"}, "train.optimizers is separate"),
        ({"objective": "electric", "generator__kind": "ngram"}, "generator.kind is ngram"),
    ):
        runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, **changes)
        assert words in capsys.readouterr().err


def test_a_dry_run_says_what_is_needed(runs, capsys):
    words = [word for word in runs.words("unused", **ONE_PASS) if not word.startswith("--out")]
    assert cli.main([*words, "--dry_run=true"]) == cli.OK
    assert "[MASK]" in capsys.readouterr().out
