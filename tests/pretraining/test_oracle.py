"""The authors' own numbers: losses, metrics, all gradients and five optimizer steps of their tiny models.

Their dumps hold masked positions and corrupted rows. The uniform numbers that make our sampler draw the same
tokens are worked out from the generator's distribution, so that what runs here is what runs in training.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from electra.model import names
from electra.pretraining import metrics
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import Inputs, Masked, TokenFacts
from electra.pretraining.objectives import build_objective
from electra.pretraining.objectives.electra import Electra, detection_losses
from electra.train.optim import OptimizerConfig, build_optimizer, clip_by_global_norm, set_learning_rate
from electra.train.schedule import ScheduleConfig, learning_rate

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module", params=["pretrain_mini", "pretrain_mini_gen2layers"])
def dump(request, shared: Path):
    """Arrays of the dump, with its facts."""
    folder = shared / "oracles" / "google-electra"
    with np.load(folder / f"{request.param}.npz") as arrays:
        return dict(arrays), json.loads((folder / f"{request.param}.json").read_text())


@pytest.fixture
def objective(dump) -> Electra:
    arrays, facts = dump
    settings = facts["pretraining_config"]
    encoder = names.from_transformers_config({**facts["disc"], "embedding_size": settings["embedding_size"]})
    generator = GeneratorConfig(width=settings["generator_hidden_size"], depth=settings["generator_layers"])
    objective = build_objective(
        PretrainConfig(generator=generator),
        encoder,
        TokenFacts(vocab_size=encoder.vocab_size, mask_id=4, special_ids=(0, 2, 3, 4)),
        seq_length=settings["max_seq_length"],
        seed=0,
    )
    assert isinstance(objective, Electra)
    load_weights(arrays, objective, "w/")
    return objective.eval()


def load_weights(arrays, objective, prefix):
    variables = {
        name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
    }
    objective.load_state_dict(names.from_tensorflow(variables))


def tensor(arrays, name):
    found = torch.from_numpy(arrays[name])
    return found.long() if found.dtype == torch.int32 else found


def rows_of(arrays, prefix="") -> Inputs:
    input_ids_BL, token_type_ids_BL, mask_BL = (
        tensor(arrays, f"{prefix}in/{name}") for name in ("input_ids", "segment_ids", "input_mask")
    )
    inputs = Inputs.of(input_ids_BL, token_type_ids_BL, mask_BL.sum(1))
    assert torch.equal(inputs.token_mask, mask_BL.bool())
    return inputs


@torch.no_grad()
def masked_of(arrays, objective, inputs, prefix="") -> Masked:
    """The dump's masking, with the uniform numbers that lead to the dump's samples."""
    positions_BP = tensor(arrays, f"{prefix}out/masked_lm_positions")
    chosen_BP = tensor(arrays, f"{prefix}out/masked_lm_weights") > 0
    rows_B1 = torch.arange(len(positions_BP))[:, None] * inputs.input_ids_BL.shape[1]
    positions_P = (positions_BP + rows_B1)[chosen_BP]
    masked_ids_BL = tensor(arrays, f"{prefix}out/masked_input_ids")
    generator = objective.generator
    hidden_PD = generator(masked_ids_BL, **inputs.context).flatten(0, 1)[positions_P]
    logits_PV = objective.generator_head(hidden_PD, generator.embeddings.word_embeddings.weight)
    probs_PV = logits_PV.double().softmax(-1)
    # A position that was chosen twice holds the mean of two samples: here both are that mean.
    sampled_P1 = tensor(arrays, f"{prefix}out/fake_input_ids").flatten()[positions_P][:, None]
    middle_PV = probs_PV.cumsum(-1) - probs_PV / 2
    return Masked(
        masked_ids_BL=masked_ids_BL,
        positions_P=positions_P,
        original_P=inputs.input_ids_BL.flatten()[positions_P],
        uniform_P=middle_PV.gather(1, sampled_P1).squeeze(1),
        chosen_U=positions_P.unique(),
        ordinary_M=objective.ordinary_mask(inputs).flatten().nonzero().squeeze(1),
    )


def close(ours, theirs):
    torch.testing.assert_close(
        torch.as_tensor(ours), torch.as_tensor(theirs), rtol=0, atol=1e-5, check_dtype=False
    )


def run(arrays, objective, prefix=""):
    inputs = rows_of(arrays, prefix)
    masked = masked_of(arrays, objective, inputs, prefix)
    weights_BP = tensor(arrays, f"{prefix}out/masked_lm_weights")
    assert torch.equal(masked.original_P, tensor(arrays, f"{prefix}out/masked_lm_ids")[weights_BP > 0])
    output = objective.loss(inputs, masked, objective.count(inputs, masked))
    assert torch.equal(output.views["corrupted_ids_BL"], tensor(arrays, f"{prefix}out/fake_input_ids"))
    assert torch.equal(output.views["replaced_BL"].long(), tensor(arrays, f"{prefix}out/is_fake"))
    return output


def test_losses(dump, objective):
    arrays, _ = dump
    output = run(arrays, objective)
    found = metrics.summarise(output.sums)
    torch.testing.assert_close(output.loss.detach(), tensor(arrays, "out/total_loss"), rtol=1e-6, atol=0)
    close(found["mlm_loss"], arrays["out/mlm_loss"])
    close(found["discriminator_loss"], arrays["out/disc_loss"])
    tokens_BL = rows_of(arrays).token_mask
    close(output.views["logits_BL"][tokens_BL], tensor(arrays, "out/disc_logits")[tokens_BL])


def test_all_gradients(dump, objective):
    arrays, _ = dump
    run(arrays, objective).loss.backward()
    gradients = {
        name: parameter.grad for name, parameter in objective.named_parameters(remove_duplicate=False)
    }
    ours = names.to_tensorflow(gradients)
    theirs = {name[2:]: array for name, array in arrays.items() if name.startswith("g/")}
    assert ours.keys() == theirs.keys()
    # A key's bias moves all scores of a query alike, so its true gradient is zero and both sides hold only
    # rounding: the norm of all gradients is the scale there.
    total = float(arrays["out/grad_global_norm"])
    for name, array in theirs.items():
        scale = total if name.endswith("key/bias") else np.linalg.norm(array)
        assert np.linalg.norm(ours[name] - array) <= 1e-5 * scale, name


def tensorflow_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """tf.metrics.auc: trapezoids over 200 thresholds."""
    thresholds = np.concatenate([[-1e-7], np.arange(1, 199) / 199, [1 + 1e-7]])
    said = scores[None, :] > thresholds[:, None]
    recall = (said & labels).sum(1) / labels.sum()
    false_alarms = (said & ~labels).sum(1) / (~labels).sum()
    return float(((false_alarms[:-1] - false_alarms[1:]) * (recall[:-1] + recall[1:]) / 2).sum())


def test_metrics(dump, objective):
    arrays, _ = dump
    output = run(arrays, objective)
    found = metrics.summarise(output.sums)
    close(found["mlm_loss"], arrays["metric/masked_lm_loss"])
    close(found["mlm_accuracy"], arrays["metric/masked_lm_accuracy"])
    close(found["sampled_accuracy"], arrays["metric/sampled_masked_lm_accuracy"])
    close(found["discriminator_accuracy"], arrays["metric/disc_accuracy"])
    close(found["discriminator_recall"], arrays["metric/disc_recall"])
    # They say 0 where there is nothing to be precise about.
    close(np.nan_to_num(found["discriminator_precision"]), arrays["metric/disc_precision"])

    mask_BL, replaced_BL = rows_of(arrays).token_mask, output.views["replaced_BL"]
    probs_BL = output.views["logits_BL"].sigmoid()
    exact = roc_auc_score(replaced_BL[mask_BL].numpy(), probs_BL[mask_BL].numpy())
    assert found["discriminator_auc"] == pytest.approx(exact, abs=1e-3)
    # They count padding too, as certainly original.
    theirs = tensorflow_auc(replaced_BL.flatten().numpy(), (probs_BL * mask_BL).flatten().numpy())
    close(theirs, arrays["metric/disc_auc"])


def test_the_authors_evaluate_the_mean_over_rows(dump, objective):
    """Their metric weights rows, not tokens, alike: ours, row by row, has the same mean."""
    arrays, _ = dump
    output = run(arrays, objective)
    replaced_BL, logits_BL = output.views["replaced_BL"], output.views["logits_BL"]
    losses = [
        detection_losses(logits_L[mask_L], replaced_L[mask_L]).mean()
        for logits_L, replaced_L, mask_L in zip(
            logits_BL, replaced_BL, rows_of(arrays).token_mask, strict=True
        )
    ]
    close(torch.stack(losses), arrays["out/disc_per_example_loss"])
    close(torch.stack(losses).mean(), arrays["metric/disc_loss"])


@pytest.mark.parametrize("dump", ["pretrain_mini"], indirect=True)
def test_five_optimizer_steps(dump, objective):
    arrays, facts = dump
    settings = facts["pretraining_config"]
    config = OptimizerConfig(weight_decay=settings["weight_decay_rate"])
    schedule = ScheduleConfig(
        learning_rate=settings["learning_rate"], warmup_steps=settings["num_warmup_steps"]
    )
    optimizer = build_optimizer(config, objective.named_parameters())
    for step in range(5):
        prefix = f"step{step}/"
        output = run(arrays, objective, prefix)
        torch.testing.assert_close(
            output.loss.detach(), tensor(arrays, f"{prefix}out/total_loss"), rtol=1e-6, atol=0
        )
        optimizer.zero_grad()
        output.loss.backward()
        norm = clip_by_global_norm(objective.parameters(), clip_norm=config.clip_norm)
        torch.testing.assert_close(norm, tensor(arrays, f"{prefix}grad_global_norm"), rtol=1e-5, atol=0)
        rate = learning_rate(schedule, step=step + 1, progress=(step + 1) / settings["num_train_steps"])
        assert rate == pytest.approx(float(arrays[f"{prefix}lr"]), rel=1e-6)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        compare_weights(arrays, objective, prefix)
        compare_slots(arrays, objective, optimizer, prefix)
        # The next from the authors' weights: losses of 26 to 88 show that their training is no longer stable,
        # and what is rounding in the weights, theirs too, would grow to 1e-5 of the fifth loss.
        load_weights(arrays, objective, f"{prefix}w/")


def compare_weights(arrays, objective, prefix):
    ours = names.to_tensorflow(objective.state_dict())
    theirs = {
        name.removeprefix(f"{prefix}w/"): value for name, value in arrays.items() if f"{prefix}w/" in name
    }
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=0, atol=1e-5, err_msg=name)


def compare_slots(arrays, objective, optimizer, prefix):
    """Only the first and the last step were dumped with their Adam slots."""
    slots = {name: value for name, value in arrays.items() if f"{prefix}slot/" in name}
    assert bool(slots) == (prefix in ("step0/", "step4/"))
    for slot, key in (("adam_m", "exp_avg"), ("adam_v", "exp_avg_sq")):
        moments = {
            name: optimizer.state[parameter][key]
            for name, parameter in objective.named_parameters(remove_duplicate=False)
        }
        for name, array in names.to_tensorflow(moments).items() if slots else ():
            # In proportion to the terms that a gradient adds up. Those of a key's bias, the gradients of all
            # keys, cancel and leave their rounding; the kernel's are the same times inputs of a size of one.
            terms = slots[f"{prefix}slot/{name}/{slot}".replace("/key/bias", "/key/kernel")]
            np.testing.assert_allclose(
                array,
                slots[f"{prefix}slot/{name}/{slot}"],
                rtol=0,
                atol=5e-5 * np.abs(terms).max(),
                err_msg=name,
            )
