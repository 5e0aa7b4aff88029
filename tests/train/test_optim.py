import copy
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.train.optim import (
    AdamAsGoogle,
    Network,
    OptimizerConfig,
    build_optimizer,
    clip_by_global_norm,
    clip_gradients,
    layer_scale,
    orthogonalised,
    parameter_groups,
    set_learning_rate,
)
from electra.train.schedule import ScheduleConfig, learning_rate

pytestmark = pytest.mark.numeric


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 5)
        self.LayerNorm = nn.LayerNorm(5)

    def forward(self, hidden_BD: Tensor) -> Tensor:
        normed_BD: Tensor = self.LayerNorm(self.dense(hidden_BD).tanh())
        return normed_BD


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(Block(), Block(), nn.Linear(5, 1))


def optimizer_of(kind: str, model: nn.Module, **options: float) -> torch.optim.Optimizer:
    config = OptimizerConfig(optimizer=kind, **options)
    return build_optimizer(config, model.named_parameters(), is_matrix=lambda name: "dense" in name)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        inputs_BD = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(inputs_BD) - inputs_BD.sum(-1, keepdim=True)).square().mean().backward()
        clip_by_global_norm(model.parameters(), clip_norm=1.0)
        set_learning_rate(optimizer, 1e-2 / (1 + step))
        optimizer.step()


def numpy_adam(weights: np.ndarray, gradients: list[np.ndarray], lr: float, decay: float, corrected: bool):
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for age, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        mean_part, square_part = (1 - 0.9**age, 1 - 0.999**age) if corrected else (1, 1)
        update = (mean / mean_part) / (np.sqrt(square / square_part) + 1e-6) + decay * weights
        weights = weights - lr * update
    return weights, mean, square


@pytest.mark.parametrize("kind", ["adam_as_google", "adamw"])
def test_both_equal_a_numpy_reference(kind: str) -> None:
    random = np.random.default_rng(0)
    weights = random.normal(size=(7, 11))
    # Sizes from far below eps to large: each has its own weight of eps in the update.
    gradients = [random.normal(size=(7, 11)) * 10.0 ** random.uniform(-9, 3, size=(7, 11)) for _ in range(30)]
    param = nn.Parameter(torch.tensor(weights, dtype=torch.float64))
    optimizer = build_optimizer(OptimizerConfig(optimizer=kind, weight_decay=0.1), [("dense.weight", param)])
    set_learning_rate(optimizer, 0.01)
    for gradient in gradients:
        param.grad = torch.tensor(gradient)
        optimizer.step()
    expected, mean, square = numpy_adam(weights, gradients, 0.01, 0.1, corrected=kind == "adamw")
    np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(optimizer.state[param]["exp_avg"].numpy(), mean, rtol=1e-9)
    np.testing.assert_allclose(optimizer.state[param]["exp_avg_sq"].numpy(), square, rtol=1e-9)


def test_no_bias_correction_makes_the_first_step_bigger() -> None:
    """Without correction the first update is 0.1 / √0.001 ≈ 3.16 learning rates, with it exactly one."""
    moved = {}
    for kind in ("adam_as_google", "adamw"):
        param = nn.Parameter(torch.zeros(3))
        optimizer = build_optimizer(OptimizerConfig(optimizer=kind), [("weight", param)])
        set_learning_rate(optimizer, 1.0)
        param.grad = torch.full((3,), 1e3)
        optimizer.step()
        moved[kind] = param.detach()
    torch.testing.assert_close(moved["adam_as_google"], torch.full((3,), -(0.1 / math.sqrt(0.001))))
    torch.testing.assert_close(moved["adamw"], torch.full((3,), -1.0))


def test_a_parameter_without_gradient_is_left_alone() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = AdamAsGoogle([used, unused], lr=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert (used < 1).all()
    assert (unused == 1).all()
    assert unused not in optimizer.state
    unused.grad, used.grad = torch.ones(2), None
    before = used.detach().clone()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    assert (unused < 1).all()
    assert (used == before).all()


@pytest.mark.parametrize("kind", ["adam_as_google", "adamw", "muon"])
def test_resumed_training_is_bit_exact(kind: str, tmp_path: Path) -> None:
    whole = small_model()
    train(whole, optimizer_of(kind, whole), range(20))

    first = small_model()
    optimizer = optimizer_of(kind, first)
    train(first, optimizer, range(9))
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")

    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    second = small_model(seed=1)
    resumed = optimizer_of(kind, second)
    second.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    train(second, resumed, range(9, 20))
    for (name, ours), theirs in zip(second.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("kind", ["adam_as_google", "adamw", "muon"])
def test_a_loss_falls(kind: str) -> None:
    model = small_model()
    inputs_BD = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    targets_B1 = inputs_BD.sum(-1, keepdim=True).sign()
    optimizer = optimizer_of(kind, model, matrix_learning_rate=1.0)
    set_learning_rate(optimizer, 3e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(inputs_BD) - targets_B1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("shape", [(24, 24), (40, 12), (12, 40)], ids=["square", "tall", "wide"])
def test_matrices_become_nearly_orthogonal(shape: tuple[int, int]) -> None:
    """Singular values that were up to 50 times apart lie around 1, and directions stay what they were."""
    rank = min(shape)
    random = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(3, shape[0], rank, generator=random))[0]
    right = torch.linalg.qr(torch.randn(3, shape[1], rank, generator=random))[0]
    before = (left * torch.logspace(-1.7, 0, rank)) @ right.mT
    before[2] *= 1e-6  # Size does not matter.
    after = orthogonalised(before, dtype=torch.float32)
    inside = left.mT @ after @ right
    values = inside.diagonal(dim1=-2, dim2=-1)
    # The range that the coefficients keep values in.
    assert values.min() > 0.6
    assert values.max() < 1.3
    # Rounding of fp32 in fifteen products.
    assert (inside - values.diag_embed()).abs().max() < 1e-4
    for one_RC, together_RC in zip(before, after, strict=True):
        torch.testing.assert_close(
            orthogonalised(one_RC[None], dtype=torch.float32)[0], together_RC, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (12, 24)])
@pytest.mark.parametrize("rank", [12, 5])
def test_wide_matrices_are_iterated_on_their_rows_alone(shape: tuple[int, int], rank: int) -> None:
    """The same polynomial as on the matrix itself, which double precision is computed with."""
    random = torch.Generator().manual_seed(1)
    left, right = (torch.randn(3, size, rank, generator=random, dtype=torch.float64) for size in shape)
    before = (torch.linalg.qr(left)[0] * torch.logspace(-4, 0, rank)) @ torch.linalg.qr(right)[0].mT
    expected = orthogonalised(before, dtype=torch.float64)
    found = orthogonalised(before.float(), dtype=torch.float32)
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_a_matrix_without_gradient_is_not_moved() -> None:
    zero = orthogonalised(torch.zeros(2, 3, 4), dtype=torch.float32)
    assert torch.equal(zero, torch.zeros(2, 3, 4))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_muon_is_torchs_for_matrices_and_adamw_for_the_rest(precision: Literal["bf16", "fp32"]) -> None:
    random = torch.Generator().manual_seed(0)
    shapes = {"a.dense": (8, 8), "b.dense": (8, 8), "c.dense": (24, 8), "d.dense": (8, 24), "table": (30, 8)}
    ours, theirs = (
        {name: nn.Parameter(torch.ones(shape)) for name, shape in {**shapes, "bias": (8,)}.items()}
        for _ in range(2)
    )
    optimizer = build_optimizer(
        OptimizerConfig(optimizer="muon", weight_decay=0.1, matrix_learning_rate=0.02, eps=1e-8, beta2=0.98),
        ours.items(),
        is_matrix=lambda name: "dense" in name,
        peak=0.002,
        precision=precision,
    )
    matrices = [theirs[name] for name in theirs if "dense" in name]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="original")
    options: dict[str, Any] = {"lr": 0.002, "betas": (0.9, 0.98), "eps": 1e-8, "fused": True}
    adamw = torch.optim.AdamW([theirs["table"]], weight_decay=0.1, **options)
    plain = torch.optim.AdamW([theirs["bias"]], weight_decay=0.0, **options)
    for step in range(5):
        for name, param in ours.items():
            # One matrix has no gradient at first: it is left alone.
            if name != "b.dense" or step > 1:
                param.grad = torch.randn(param.shape, generator=random)
                theirs[name].grad = param.grad.clone()
        set_learning_rate(optimizer, 0.002)
        for one in (optimizer, muon, adamw, plain):
            one.step()
        if step == 1:
            assert torch.equal(ours["b.dense"], torch.ones(8, 8))
            assert not optimizer.state[ours["b.dense"]]
    for name, param in ours.items():
        if name in ("table", "bias"):
            assert torch.equal(param, theirs[name]), name
            continue
        # Five updates of norm √8 or √24·√3, and torch rounds to bf16 after each of fifteen products; what we
        # compare with is the distance gone.
        gone = (theirs[name] - 0.99**5).norm().item()
        assert (param - theirs[name]).norm().item() < 0.02 * gone, name


def test_matrices_have_a_rate_of_their_own_that_falls_with_their_depth() -> None:
    optimizer = build_optimizer(
        OptimizerConfig(optimizer="muon", layer_decay=0.5, matrix_learning_rate=0.08),
        small_model().named_parameters(),
        depth=lambda name: int(name.split(".")[0]),
        num_layers=1,
        network=lambda name: Network("generator", 0.5) if name[0] == "0" else Network("discriminator", 1.0),
        is_matrix=lambda name: "dense" in name,
        peak=8.0,
    )
    set_learning_rate(optimizer, 4.0)  # Half of the peak.
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    updates = {name: group["update"] for group in optimizer.param_groups for name in group["param_names"]}
    assert rates == pytest.approx(
        {
            "0.dense.weight": 0.04 / 4 / 2,
            "0.dense.bias": 4 / 4 / 2,
            "0.LayerNorm.weight": 4 / 4 / 2,
            "0.LayerNorm.bias": 4 / 4 / 2,
            "1.dense.weight": 0.04 / 2,
            "1.dense.bias": 4 / 2,
            "1.LayerNorm.weight": 4 / 2,
            "1.LayerNorm.bias": 4 / 2,
            "2.weight": 4,
            "2.bias": 4,
        }
    )
    assert [name for name, update in updates.items() if update == "muon"] == [
        "0.dense.weight",
        "1.dense.weight",
    ]


def test_norms_and_biases_are_not_decayed() -> None:
    groups = parameter_groups(OptimizerConfig(weight_decay=0.3), small_model().named_parameters())
    decay = {name: group["weight_decay"] for group in groups for name, _ in group["params"]}
    assert decay == {
        name: 0.3 if name in ("0.dense.weight", "1.dense.weight", "2.weight") else 0.0
        for name, _ in small_model().named_parameters()
    }


def test_frozen_parameters_are_left_out() -> None:
    model = small_model()
    model[0].requires_grad_(False)
    groups = parameter_groups(OptimizerConfig(), model.named_parameters())
    names = {name for group in groups for name, _ in group["params"]}
    assert names == {name for name, _ in model.named_parameters() if not name.startswith("0.")}


def test_layers_learn_at_their_own_rate() -> None:
    """A model of embeddings (0), one layer (1) and a head (2), told apart by the first part of the name."""
    optimizer = build_optimizer(
        OptimizerConfig(layer_decay=0.5),
        small_model().named_parameters(),
        depth=lambda name: int(name.split(".")[0]),
        num_layers=1,
    )
    set_learning_rate(optimizer, 8.0)
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert rates == {
        name: {"0": 2.0, "1": 4.0, "2": 8.0}[name[0]] for name, _ in small_model().named_parameters()
    }


def test_layer_decay_correct_and_as_google() -> None:
    correct = OptimizerConfig(layer_decay=0.5)
    as_google = OptimizerConfig(layer_decay=0.5, layer_decay_rule="as_google")
    assert [layer_scale(correct, depth, num_layers=2) for depth in range(4)] == [1 / 8, 1 / 4, 1 / 2, 1]
    assert [layer_scale(as_google, depth, num_layers=2) for depth in range(4)] == [1 / 16, 1 / 8, 1 / 4, 1]


def test_layer_decay_as_google_equals_every_entry_of_the_original(shared: Path) -> None:
    oracle = json.loads((shared / "oracles" / "google-electra" / "layerwise_lr_oracle.json").read_text())
    for case, rates in oracle.items():
        num_layers, decay = int(case.split("_")[0][1:]), float(case.split("_d")[1])
        depths = {"/embeddings/": 0, "/embeddings_project/": 0, "task_specific/": num_layers + 1}
        depths |= {f"encoder/layer_{layer}/": layer + 1 for layer in range(num_layers)}
        config = OptimizerConfig(layer_decay=decay, layer_decay_rule="as_google")
        ours = {key: layer_scale(config, depth, num_layers=num_layers) for key, depth in depths.items()}
        assert ours == pytest.approx(rates, rel=1e-12)


def test_layer_decay_without_layers_is_refused() -> None:
    with pytest.raises(InputError, match="layer_decay"):
        build_optimizer(OptimizerConfig(layer_decay=0.8), small_model().named_parameters())


def two_networks(clip_norm: float, scale: float) -> tuple[nn.ModuleDict, torch.optim.Optimizer, Tensor]:
    """A generator and a discriminator that share their first layer, after a backward pass and clipping."""
    generator, discriminator = small_model(0), small_model(1)
    discriminator[0] = generator[0]
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    networks = {"generator": Network("generator", scale), "discriminator": Network("discriminator", 1.0)}
    optimizer = build_optimizer(
        OptimizerConfig(), both.named_parameters(), network=lambda name: networks[name.split(".")[0]]
    )
    inputs_BD = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    (generator(inputs_BD).sum() + 50 * discriminator(inputs_BD).sum()).backward()
    return both, optimizer, clip_gradients(optimizer, clip_norm=clip_norm)


def norms_by_network(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    gradients: dict[str, list[Tensor]] = {}
    for group in optimizer.param_groups:
        gradients.setdefault(group["network"], []).extend(param.grad.flatten() for param in group["params"])
    return {name: torch.cat(found).norm().item() for name, found in gradients.items()}


def test_separately_optimized_networks_are_clipped_on_their_own() -> None:
    _, untouched, norm = two_networks(math.inf, 1.0)
    before = norms_by_network(untouched)
    assert norm.item() == pytest.approx(math.hypot(*before.values()))
    _, clipped_each, same_norm = two_networks(1.0, 1.0)
    assert same_norm.item() == pytest.approx(norm.item())
    assert min(before.values()) > 1, "or nothing is clipped"
    assert norms_by_network(clipped_each) == pytest.approx({"generator": 1.0, "discriminator": 1.0})


def test_separately_optimized_networks_have_learning_rates_of_their_own() -> None:
    _, optimizer, _ = two_networks(1.0, 0.25)
    set_learning_rate(optimizer, 0.1)
    rates = {(group["network"], group["lr"]) for group in optimizer.param_groups}
    assert rates == {("generator", 0.025), ("discriminator", 0.1)}
    # What both use is the generator's: it is named first.
    owned = [name for group in optimizer.param_groups for name in group["param_names"]]
    assert any(name.startswith("generator.0.") for name in owned)
    assert not any(name.startswith("discriminator.0.") for name in owned)


def test_a_network_without_gradients_stays_as_it_is() -> None:
    both, optimizer, _ = two_networks(1.0, 1.0)
    optimizer.zero_grad(set_to_none=True)
    both["discriminator"][1:](torch.ones(2, 5)).sum().backward()
    norm = clip_gradients(optimizer, clip_norm=math.inf)
    before = copy.deepcopy(both["generator"].state_dict())
    set_learning_rate(optimizer, 0.1)
    optimizer.step()
    assert norm.item() > 0
    assert all(torch.equal(value, before[name]) for name, value in both["generator"].state_dict().items())


def clipped(gradients: list[list[float]], clip_norm: float) -> tuple[list[Tensor], float]:
    params = [nn.Parameter(torch.zeros(len(values))) for values in gradients]
    for param, values in zip(params, gradients, strict=True):
        param.grad = torch.tensor(values)
    norm = clip_by_global_norm([*params, nn.Parameter(torch.zeros(3))], clip_norm=clip_norm)
    return [param.grad for param in params if param.grad is not None], norm.item()


def test_clipping_scales_all_gradients_to_the_norm() -> None:
    gradients, norm = clipped([[3.0, 0.0], [4.0]], 1.0)
    assert norm == 5.0
    assert torch.cat(gradients).tolist() == pytest.approx([0.6, 0.0, 0.8])


def test_clipping_leaves_small_gradients_bit_for_bit() -> None:
    for clip_norm in (1.0, math.inf):
        gradients, norm = clipped([[0.3, 0.1], [0.4]], clip_norm)
        assert norm == pytest.approx(math.sqrt(0.26))
        assert torch.equal(torch.cat(gradients), torch.tensor([0.3, 0.1, 0.4]))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_shows_in_every_gradient(bad: float) -> None:
    gradients, norm = clipped([[1.0, bad], [2.0]], 1.0)
    assert not math.isfinite(norm)
    assert torch.cat(gradients).isnan().all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"eps": 0.0},
        {"weight_decay": -1.0},
        {"clip_norm": 0.0},
        {"layer_decay": 1.1},
        {"momentum": 1.0},
        {"matrix_learning_rate": 0.0},
        {"matrix_learning_rate": math.inf},
    ],
)
def test_a_wrong_value_is_refused_by_its_key(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        OptimizerConfig(**wrong)


def originals_optimizer(folder: Path) -> tuple[OptimizerConfig, ScheduleConfig, int]:
    """Our configs for the run that the original recorded, and its number of steps."""
    settings = json.loads((folder / "pretrain_mini.json").read_text())
    adam, run = settings["optimizer"], settings["pretraining_config"]
    optimizer = OptimizerConfig(
        beta1=adam["beta_1"],
        beta2=adam["beta_2"],
        eps=adam["epsilon"],
        weight_decay=adam["weight_decay_rate"],
    )
    schedule = ScheduleConfig(learning_rate=run["learning_rate"], warmup_steps=run["num_warmup_steps"])
    return optimizer, schedule, run["num_train_steps"]


@pytest.fixture(scope="module")
def recorded(shared: Path) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    folder = shared / "oracles" / "google-electra"
    with np.load(folder / "pretrain_mini.npz") as dump:
        yield folder, {key: torch.tensor(dump[key]) for key in dump.files}


def assert_near(ours: Tensor, original: Tensor, name: str, *, atol: float = 1e-5) -> None:
    torch.testing.assert_close(ours.detach(), original, rtol=0, atol=atol, msg=lambda text: f"{name}: {text}")


def test_the_originals_gradients_clip_to_its_norm(recorded: tuple[Path, dict[str, Tensor]]) -> None:
    _, dump = recorded
    params = []
    for key in (key for key in dump if key.startswith("g/")):
        params.append(nn.Parameter(torch.zeros_like(dump[key])))
        params[-1].grad = dump[key].clone()
    norm = clip_by_global_norm(params, clip_norm=1.0)
    assert norm.item() == pytest.approx(dump["out/grad_global_norm"].item(), rel=1e-6)
    after = torch.nn.utils.get_total_norm([param.grad for param in params if param.grad is not None])
    assert after.item() == pytest.approx(1.0, rel=1e-6)


def test_the_originals_first_step_from_its_own_gradients(recorded: tuple[Path, dict[str, Tensor]]) -> None:
    """The dump has no gradients of its steps, but the first mean gradient is a tenth of the first of them."""
    folder, dump = recorded
    config, schedule, total_steps = originals_optimizer(folder)
    weights = {key[2:]: nn.Parameter(dump[key].clone()) for key in dump if key.startswith("w/")}
    for name, param in weights.items():
        param.grad = dump[f"step0/slot/{name}/adam_m"] / (1 - config.beta1)
    optimizer = build_optimizer(config, weights.items())
    set_learning_rate(optimizer, learning_rate(schedule, step=1, progress=1 / total_steps))
    optimizer.step()
    for name, param in weights.items():
        assert_near(param, dump[f"step0/w/{name}"], name)
        assert_near(optimizer.state[param]["exp_avg"], dump[f"step0/slot/{name}/adam_m"], name)
        torch.testing.assert_close(
            optimizer.state[param]["exp_avg_sq"], dump[f"step0/slot/{name}/adam_v"], rtol=1e-5, atol=1e-20
        )


class TransformersElectra(nn.Module):
    """The recorded model in transformers' classes: independent of ours, agrees with the original to 4e-6."""

    def __init__(self, settings: dict[str, dict[str, int]]) -> None:
        super().__init__()
        from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

        size = settings["pretraining_config"]["embedding_size"]
        generator = ElectraForMaskedLM(ElectraConfig(**settings["gen"], embedding_size=size))
        self.discriminator = ElectraForPreTraining(ElectraConfig(**settings["disc"], embedding_size=size))
        # transformers blocks the gradient of [PAD]'s row.
        self.discriminator.electra.embeddings.word_embeddings.padding_idx = None
        generator.electra.embeddings = self.discriminator.electra.embeddings
        generator.tie_weights()
        self.generator = generator
        self.eval()

    def named_as_original(self) -> dict[str, nn.Parameter]:
        """Parameters under the original's variable names, those of Linear still to be transposed."""
        named = {}
        for ours, param in self.named_parameters():
            name = ours.removeprefix("discriminator.").replace("generator.electra.", "generator.")
            name = re.sub(r"layer\.(\d+)", r"layer_\1", name.replace("generator.generator_", "generator_"))
            name = name.replace("generator_lm_head.bias", "generator_predictions.output_bias")
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            name = name.replace("_embeddings.weight", "_embeddings").replace(".weight", ".kernel")
            name = name.replace("dense_prediction", "dense_1")
            named[name.replace(".", "/")] = param
        return named

    def loss(self, step: dict[str, Tensor]) -> Tensor:
        mask_BL, types_BL = step["in/input_mask"], step["in/segment_ids"]
        masked = self.generator(step["out/masked_input_ids"], mask_BL, types_BL).logits
        chosen = masked.gather(
            1, step["out/masked_lm_positions"].long()[..., None].expand(-1, -1, masked.shape[-1])
        )
        losses = nn.functional.cross_entropy(
            chosen.transpose(1, 2), step["out/masked_lm_ids"].long(), reduction="none"
        )
        weights = step["out/masked_lm_weights"]
        logits_BL = self.discriminator(step["out/fake_input_ids"], mask_BL, types_BL).logits
        real = mask_BL.bool()
        detection = nn.functional.binary_cross_entropy_with_logits(
            logits_BL[real], step["out/is_fake"][real].float()
        )
        return (losses * weights).sum() / weights.sum() + 50 * detection


SLOT_ROUNDING = 5e-5
"""Of the terms that a gradient adds up: five steps of some hundred tokens, in fp32 and in another order."""


def gradients_added(name: str) -> str:
    """The variable whose gradient has the size of the terms of this one's.

    A query's softmax does not change if all keys are moved, so that in the gradient of a key's bias those of
    the keys cancel. What is left is their rounding, in proportion to them; the kernel's gradient is made of
    the same, times inputs that were normed to a size of one.
    """
    return name.replace("/key/bias", "/key/kernel")


def test_the_originals_five_steps(recorded: tuple[Path, dict[str, Tensor]]) -> None:
    folder, dump = recorded
    config, schedule, total_steps = originals_optimizer(folder)
    model = TransformersElectra(json.loads((folder / "pretrain_mini.json").read_text()))
    named = model.named_as_original()
    assert set(named) == {key[2:] for key in dump if key.startswith("w/")}

    def original(key: str) -> Tensor:
        return dump[key].T if "/kernel" in key else dump[key]

    optimizer = build_optimizer(config, named.items())
    for step in range(5):
        prefix = f"step{step}/"
        # Each step from the original's weights, with our moments: losses of 26 to 88 show that it is not
        # stable, and what is rounding in the weights, its own too, would grow to 1e-5 of the fifth loss.
        with torch.no_grad():
            for name, param in named.items():
                param.copy_(original(f"step{step - 1}/w/{name}" if step else f"w/{name}"))
        optimizer.zero_grad()
        loss = model.loss({key.removeprefix(prefix): dump[key] for key in dump if key.startswith(prefix)})
        loss.backward()
        norm = clip_by_global_norm(named.values(), clip_norm=config.clip_norm)
        assert loss.item() == pytest.approx(dump[f"{prefix}out/total_loss"].item(), rel=1e-6)
        assert norm.item() == pytest.approx(dump[f"{prefix}grad_global_norm"].item(), rel=1e-5)
        set_learning_rate(
            optimizer, learning_rate(schedule, step=step + 1, progress=(step + 1) / total_steps)
        )
        optimizer.step()
        for name, param in named.items():
            assert_near(param, original(f"{prefix}w/{name}"), f"{prefix}{name}")
    for theirs, ours in (("adam_m", "exp_avg"), ("adam_v", "exp_avg_sq")):
        slots = {name: original(f"step4/slot/{name}/{theirs}") for name in named}
        for name, param in named.items():
            atol = SLOT_ROUNDING * slots[gradients_added(name)].abs().max().item()
            assert_near(optimizer.state[param][ours], slots[name], f"{name} {theirs}", atol=atol)
