"""Named parameters -> parameter groups -> optimizer; gradients -> clipped gradients and their norm.

Knows no model: which layer and which network a parameter belongs to are functions of its name, given by the
caller. Networks that are trained side by side can be optimized separately: each has its own learning rate,
and its gradients are clipped on their own. Adam's moments belong to single weights, so one optimizer object
serves all networks, and a checkpoint holds it as it holds any other. So does Muon's with the AdamW beside it.

N matrices of one shape, R rows, C columns.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from electra.errors import InputError
from electra.train.devices import Precision
from electra.train.distributed import local_part, whole_tensor

OptimizerName = Literal["adam_as_google", "adamw", "muon"]
NamedParameters = Iterable[tuple[str, nn.Parameter]]

# The original's rule, by name ("LayerNorm", "layer_norm", "bias"), widened to any spelling of a norm.
_NO_WEIGHT_DECAY = re.compile("norm|bias", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer."""

    optimizer: OptimizerName = "adam_as_google"
    """adam_as_google: the original's, without bias correction; adamw: with it; muon: for the matrices of the
    layers, with adamw for all other weights. All decouple weight decay."""
    matrix_learning_rate: float = 0.02
    """Peak learning rate of muon's matrices, while learning_rate is that of all other weights. The schedule
    is the same for both."""
    momentum: float = 0.95
    """Share of muon's mean gradient that is kept from step to step."""
    beta1: float = 0.9
    """Decay rate of the mean gradient."""
    beta2: float = 0.999
    """Decay rate of the mean squared gradient."""
    eps: float = 1e-6
    """Added to the square root of the mean squared gradient."""
    weight_decay: float = 0.01
    """Weight decay, relative to the learning rate; norms and biases are never decayed."""
    clip_norm: float = 1.0
    """Global gradient norm above which gradients are scaled down to it; inf never clips."""
    layer_decay: float | Literal["auto"] = 1.0
    """Learning rate of a layer relative to the layer above; with 1 it is the same for all layers."""
    layer_decay_rule: Literal["correct", "as_google"] = "correct"
    """correct: the top layer has layer_decay times the head's rate; as_google: squared, as in their code."""

    def __post_init__(self) -> None:
        for key in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, key) < 1:
                raise InputError(
                    f"{key} is {getattr(self, key)}, expected at least 0 and below 1 (such as 0.9)"
                )
        if not (math.isfinite(self.matrix_learning_rate) and self.matrix_learning_rate > 0):
            raise InputError(
                f"matrix_learning_rate is {self.matrix_learning_rate}, expected a number above 0 (such as "
                "0.02)"
            )
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise InputError(f"eps is {self.eps}, expected a small number above 0 (such as 1e-6)")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise InputError(f"weight_decay is {self.weight_decay}, expected 0 (none) or more (such as 0.01)")
        if not self.clip_norm > 0:
            raise InputError(f"clip_norm is {self.clip_norm}, expected a number above 0; .inf never clips")
        if not isinstance(self.layer_decay, str) and not 0 < self.layer_decay <= 1:
            raise InputError(
                f"layer_decay is {self.layer_decay}, expected above 0 and at most 1 (1: no decay)"
            )


class Network(NamedTuple):
    """A part of the parameters with a learning rate and a gradient norm of its own."""

    name: str
    lr_scale: float
    """Its learning rate, relative to the schedule's."""


class _Optimizer(torch.optim.Optimizer, ABC):
    """An optimizer that updates group by group the parameters that have a gradient."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group, [param for param in group["params"] if param.grad is not None])
        return loss

    @abstractmethod
    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Update these parameters of a group, all of which have a gradient."""

    def _update_by_adam(
        self, group: dict[str, Any], params: list[Tensor], ages: Callable[[Tensor], Tensor]
    ) -> None:
        """Adam with decoupled weight decay; `ages` gives the number of a parameter's updates so far."""
        for param in params:
            if "exp_avg" not in self.state[param]:
                self.state[param] |= {
                    "exp_avg": torch.zeros_like(param),
                    "exp_avg_sq": torch.zeros_like(param),
                }
        # torch's fused AdamW takes one pass over memory, a chain of foreach operations seven times as long.
        adamw(
            params,
            [param.grad for param in params if param.grad is not None],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            [ages(param) for param in params],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


class AdamAsGoogle(_Optimizer):
    """Adam of the original BERT and ELECTRA: no bias correction, decoupled weight decay.

    mean = β1·mean + (1 - β1)·gradient, square = β2·square + (1 - β2)·gradient²,
    weight -= lr · (mean / (√square + eps) + weight_decay·weight)
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        # At an infinite age the bias corrections 1 - β**age of AdamW are exactly 1.
        ages = {param.device: torch.full((), math.inf, device=param.device) for param in params}
        self._update_by_adam(group, params, lambda param: ages[param.device])


class MuonWithAdamW(_Optimizer):
    """Muon for groups whose `update` is muon, AdamW for the others.

    mean = momentum·mean + (1 - momentum)·gradient, then of momentum·mean + (1 - momentum)·gradient, a matrix
    U·S·Vᵀ, about U·Vᵀ: every direction is moved by as much.
    weight -= lr · (weight_decay·weight + √max(1, rows/columns) · U·Vᵀ)

    The update is that of torch.optim.Muon with adjust_lr_fn "original". torch's class has no precision but
    bf16, in which processors without instructions for it take 3 to 17 times as long as in fp32. Here products
    are in the run's own precision (of fp16 runs in fp32), and matrices of one shape are worked on together.
    A matrix that is spread over processes is gathered for it: rows of U·Vᵀ depend on all rows.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        precision: Precision = "fp32",
    ) -> None:
        defaults = {"lr": lr, "update": "adamw", "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__(
            params, {**defaults, "weight_decay": weight_decay, "precision": precision, "fused": True}
        )

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if group["update"] == "muon":
            self._update_by_muon(group, params)
            return
        for param in params:
            # As torch.optim.AdamW does, whose kernel reads the age beside the weights and counts it up.
            self.state[param].setdefault("step", torch.zeros((), device=param.device))
        self._update_by_adam(group, params, lambda param: self.state[param]["step"])

    def _update_by_muon(self, group: dict[str, Any], params: list[Tensor]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        dtype = torch.bfloat16 if group["precision"] == "bf16" else torch.float32
        for some in _of_one_shape(params):
            directions = []
            for param in some:
                assert param.grad is not None
                if "momentum_buffer" not in self.state[param]:
                    self.state[param]["momentum_buffer"] = torch.zeros_like(param.grad)
                mean = self.state[param]["momentum_buffer"].lerp_(param.grad, 1 - momentum)
                directions.append(whole_tensor(param.grad.lerp(mean, momentum)))
            rows, columns = some[0].shape
            orthogonal_NRC = orthogonalised(torch.stack(directions), dtype=dtype)
            for param, orthogonal_RC in zip(some, orthogonal_NRC.to(some[0].dtype), strict=True):
                param.mul_(1 - lr * group["weight_decay"])
                param.add_(local_part(orthogonal_RC, param), alpha=-lr * math.sqrt(max(1, rows / columns)))


_NUMBERS_AT_ONCE = 2**24
"""Most numbers of matrices that are worked on together, which bounds memory: 64 MB in fp32 for a copy."""


def _of_one_shape(params: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for param in params:
        by_shape.setdefault(param.shape, []).append(param)
    for shape, alike in by_shape.items():
        size = max(1, _NUMBERS_AT_ONCE // shape.numel())
        yield from (alike[first : first + size] for first in range(0, len(alike), size))


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients by Keller Jordan: steepest at 0, so that five steps take singular values from 0.01 of the
largest to between about 0.7 and 1.2. They do not come nearer to 1 with more steps, and need not."""


def orthogonalised(matrices_NRC: Tensor, *, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """Matrices U·S·Vᵀ -> about U·Vᵀ, by the Newton-Schulz iteration in products of a type."""
    norm_N11: Tensor = torch.linalg.matrix_norm(matrices_NRC.float(), keepdim=True)
    flat_NRC: Tensor = (matrices_NRC / norm_N11.clamp(min=1e-7)).to(dtype)
    is_tall = flat_NRC.shape[-2] > flat_NRC.shape[-1]
    if is_tall:
        flat_NRC = flat_NRC.mT
    if dtype == torch.float32 and flat_NRC.shape[-1] >= _WIDE * flat_NRC.shape[-2]:
        flat_NRC = _iterated_on_gram(flat_NRC, steps=steps)
    else:
        flat_NRC = _iterated(flat_NRC, steps=steps)
    return flat_NRC.mT if is_tall else flat_NRC


_WIDE = 2
"""Columns, in multiples of rows, from which the iteration has fewer FLOPs on the products of rows alone: one
step has 2·rows²·(2·columns + rows) on the matrix itself, 2·rows²·4·rows there."""


def _iterated(flat_NRC: Tensor, *, steps: int) -> Tensor:
    linear, cubic, quintic = _NEWTON_SCHULZ
    for _ in range(steps):
        gram_NRR = flat_NRC @ flat_NRC.mT
        higher_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=cubic, alpha=quintic)
        flat_NRC = torch.baddbmm(flat_NRC, higher_NRR, flat_NRC, beta=linear)
    return flat_NRC


def _iterated_on_gram(flat_NRC: Tensor, *, steps: int) -> Tensor:
    """The same: each step is a product from the left, and only the last one of all is with the wide matrix.

    Squares of small singular values are less exact: in fp32 the result is off by up to 1e-3, by 2e-5 on the
    matrix itself, and by 1e-2 in torch's own Muon, which computes in bf16. Here bf16 would leave nothing.
    """
    linear, cubic, quintic = _NEWTON_SCHULZ
    gram_NRR = flat_NRC @ flat_NRC.mT
    left_NRR = None
    for step in range(steps):
        factor_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=cubic, alpha=quintic)
        factor_NRR.diagonal(dim1=-2, dim2=-1).add_(linear)
        left_NRR = factor_NRR if left_NRR is None else factor_NRR @ left_NRR
        if step < steps - 1:
            gram_NRR = factor_NRR @ gram_NRR @ factor_NRR
    return flat_NRC if left_NRR is None else left_NRR @ flat_NRC


def build_optimizer(
    config: OptimizerConfig,
    named_parameters: NamedParameters,
    *,
    depth: Callable[[str], int] | None = None,
    num_layers: int = 0,
    network: Callable[[str], Network] | None = None,
    is_matrix: Callable[[str], bool] | None = None,
    peak: float = 1.0,
    precision: Precision = "fp32",
) -> torch.optim.Optimizer:
    """The configured optimizer over grouped parameters; its learning rate is 0 until `set_learning_rate`.

    `depth` tells from a name 0 for embeddings, i + 1 for layer i, num_layers + 1 for a head. `network` tells
    which of several separately optimized networks a parameter belongs to. For muon, `is_matrix` tells which
    parameters are a layer's matrices, `peak` is the schedule's learning rate that matrix_learning_rate goes
    along with, and `precision` the one of its products.
    """
    groups = parameter_groups(
        config,
        named_parameters,
        depth=depth,
        num_layers=num_layers,
        network=network,
        is_matrix=is_matrix,
        peak=peak,
    )
    betas = (config.beta1, config.beta2)
    match config.optimizer:
        case "adam_as_google":
            return AdamAsGoogle(groups, lr=0.0, betas=betas, eps=config.eps)
        case "adamw":
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.eps, fused=True)
        case "muon":
            return MuonWithAdamW(
                groups, lr=0.0, momentum=config.momentum, betas=betas, eps=config.eps, precision=precision
            )


def parameter_groups(
    config: OptimizerConfig,
    named_parameters: NamedParameters,
    *,
    depth: Callable[[str], int] | None = None,
    num_layers: int = 0,
    network: Callable[[str], Network] | None = None,
    is_matrix: Callable[[str], bool] | None = None,
    peak: float = 1.0,
) -> list[dict[str, Any]]:
    """Trainable parameters grouped by network, weight decay and share of the learning rate (`lr_scale`)."""
    if config.layer_decay != 1 and depth is None:
        raise InputError(
            f"layer_decay is {config.layer_decay}, but there are no layers here to decay: set it to 1"
        )
    uses_muon = config.optimizer == "muon"
    assert is_matrix is not None or not uses_muon, "muon has to be told which parameters are matrices"
    groups: dict[tuple[float, float, str | None, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, param in named_parameters:
        if param.requires_grad:
            weight_decay = 0.0 if _NO_WEIGHT_DECAY.search(name) else config.weight_decay
            scale = layer_scale(config, depth(name), num_layers=num_layers) if depth else 1.0
            owner = network(name) if network else None
            by_muon = uses_muon and is_matrix is not None and is_matrix(name) and param.ndim == 2
            if by_muon:
                scale *= config.matrix_learning_rate / peak
            scale *= owner.lr_scale if owner else 1.0
            key = (weight_decay, scale, owner.name if owner else None, by_muon)
            groups.setdefault(key, []).append((name, param))
    return [
        {"params": named, "weight_decay": weight_decay, "lr_scale": scale}
        | ({"network": owner_name} if owner_name else {})
        | ({"update": "muon"} if by_muon else {})
        for (weight_decay, scale, owner_name, by_muon), named in groups.items()
    ]


def layer_scale(config: OptimizerConfig, depth: int, *, num_layers: int) -> float:
    """Share of the learning rate at a depth: 0 is the embeddings, num_layers + 1 the head."""
    assert 0 <= depth <= num_layers + 1, f"depth {depth} in a model of {num_layers} layers"
    assert not isinstance(config.layer_decay, str), "auto is for the caller to settle"
    below_head = num_layers + 1 - depth
    # As in the original: it counts one more level than there is between the top layer and the head.
    missing_level = config.layer_decay_rule == "as_google" and below_head > 0
    return float(config.layer_decay ** (below_head + missing_level))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group its share of the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_scale"]


def clip_gradients(optimizer: torch.optim.Optimizer, *, clip_norm: float) -> Tensor:
    """Clip the gradients of each separately optimized network, or of all together -> their norm before."""
    networks: dict[str | None, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        networks.setdefault(group.get("network"), []).extend(group["params"])
    # A network may have no gradient in a step: the generator in the second stage of two_stage.
    norms = [
        clip_by_global_norm(weights, clip_norm=clip_norm)
        for weights in networks.values()
        if any(weight.grad is not None for weight in weights)
    ]
    assert norms, "no parameter has a gradient"
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


@torch.no_grad()
def clip_by_global_norm(parameters: Iterable[nn.Parameter], *, clip_norm: float) -> Tensor:
    """Scale gradients to a norm of at most `clip_norm` over all of them together -> their norm before.

    As in the original's TensorFlow: no epsilon in the divisor, and a norm that is not finite makes all
    gradients NaN. The norm stays a tensor: looking at it is the caller's decision.
    """
    gradients = [param.grad for param in parameters if param.grad is not None]
    assert gradients, "no parameter has a gradient"
    norm = torch.nn.utils.get_total_norm(gradients)
    if math.isfinite(clip_norm):
        scale = torch.where(norm.isfinite(), clip_norm / norm.clamp(min=clip_norm), math.nan)
        torch._foreach_mul_(gradients, scale)
    return norm
