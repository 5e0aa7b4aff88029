"""Named parameters -> parameter groups -> optimizer; gradients -> clipped gradients and their norm.

Knows no model: which layer and which network a parameter belongs to are functions of its name, given by the
caller. Networks that are trained side by side can be optimized separately: each has its own learning rate,
and its gradients are clipped on their own. Adam's moments belong to single weights, so one optimizer object
serves all networks, and a checkpoint holds it as it holds any other.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from electra.errors import InputError

NamedParameters = Iterable[tuple[str, nn.Parameter]]

# The original's rule, by name ("LayerNorm", "layer_norm", "bias"), widened to any spelling of a norm.
_NO_WEIGHT_DECAY = re.compile("norm|bias", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer."""

    optimizer: Literal["adam_as_google", "adamw"] = "adam_as_google"
    """adam_as_google: the original's, without bias correction; adamw: with it. Both decouple weight decay."""
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
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise InputError(
                    f"{key} is {getattr(self, key)}, expected at least 0 and below 1 (such as 0.9)"
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


class AdamAsGoogle(torch.optim.Optimizer):
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
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        for param in params:
            if not self.state[param]:
                self.state[param] = {
                    "exp_avg": torch.zeros_like(param),
                    "exp_avg_sq": torch.zeros_like(param),
                }
        # torch's fused AdamW takes one pass over memory, a chain of foreach operations seven times as long.
        # At an infinite age its bias corrections 1 - β**age are exactly 1.
        ages = {param.device: torch.full((), math.inf, device=param.device) for param in params}
        adamw(
            params,
            [param.grad for param in params],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            [ages[param.device] for param in params],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def build_optimizer(
    config: OptimizerConfig,
    named_parameters: NamedParameters,
    *,
    depth: Callable[[str], int] | None = None,
    num_layers: int = 0,
    network: Callable[[str], Network] | None = None,
) -> torch.optim.Optimizer:
    """The configured optimizer over grouped parameters; its learning rate is 0 until `set_learning_rate`.

    `depth` tells from a name 0 for embeddings, i + 1 for layer i, num_layers + 1 for a head. `network` tells
    which of several separately optimized networks a parameter belongs to.
    """
    groups = parameter_groups(config, named_parameters, depth=depth, num_layers=num_layers, network=network)
    betas = (config.beta1, config.beta2)
    match config.optimizer:
        case "adam_as_google":
            return AdamAsGoogle(groups, lr=0.0, betas=betas, eps=config.eps)
        case "adamw":
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.eps, fused=True)


def parameter_groups(
    config: OptimizerConfig,
    named_parameters: NamedParameters,
    *,
    depth: Callable[[str], int] | None = None,
    num_layers: int = 0,
    network: Callable[[str], Network] | None = None,
) -> list[dict[str, Any]]:
    """Trainable parameters grouped by network, weight decay and share of the learning rate (`lr_scale`)."""
    if config.layer_decay != 1 and depth is None:
        raise InputError(
            f"layer_decay is {config.layer_decay}, but there are no layers here to decay: set it to 1"
        )
    groups: dict[tuple[float, float, str | None], list[tuple[str, nn.Parameter]]] = {}
    for name, param in named_parameters:
        if param.requires_grad:
            weight_decay = 0.0 if _NO_WEIGHT_DECAY.search(name) else config.weight_decay
            scale = layer_scale(config, depth(name), num_layers=num_layers) if depth else 1.0
            owner = network(name) if network else None
            key = (weight_decay, scale * owner.lr_scale if owner else scale, owner.name if owner else None)
            groups.setdefault(key, []).append((name, param))
    return [
        {"params": named, "weight_decay": weight_decay, "lr_scale": scale}
        | ({"network": owner_name} if owner_name else {})
        for (weight_decay, scale, owner_name), named in groups.items()
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
