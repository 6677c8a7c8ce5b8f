"""How the gates of an MLP are applied, in torch."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.model.families.facts import Activation, ClampedSilu, ClampedSwiglu, GateFunction
from potluck.model.powers import exponential, natural_logarithm

GATE_FUNCTIONS: dict[GateFunction, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "exponential": torch.exp,
}


class Elementwise:
    """Functions of f32 that give a number the same bits wherever it stands: by kernels, if there are some."""

    def __init__(self, apply: Callable[[Tensor, Activation], Tensor] | None = None) -> None:
        """`apply` computes `gate`, in such a way."""
        self._apply = apply or gate

    def __call__(self, x: Tensor, function: GateFunction) -> Tensor:
        """The function of each number."""
        rows = x.reshape(len(x), -1)
        return self._apply(torch.cat([rows, torch.ones_like(rows)], 1), function).view(x.shape)

    def softmax(self, x: Tensor, axis: int) -> Tensor:
        """The softmax over an axis, whose numbers are added in their order."""
        powers = self(x - x.amax(axis, keepdim=True), "exponential")
        return powers / in_order(powers, axis, keepdim=True)


def in_order(x: Tensor, axis: int, *, keepdim: bool = False) -> Tensor:
    """The sum over an axis, in the order of its numbers: the same bits in every shape."""
    parts = x.unbind(axis)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total.unsqueeze(axis) if keepdim else total


def gate(gate_up: Tensor, activation: Activation, learned: Tensor | None = None) -> Tensor:
    """Return what the activation makes of each row of gates and ups, (T, 2 width) → (T, width).

    A row has its gates before its ups, unless the activation has pairs of them. Without gates, it has
    ups alone: (T, width) → (T, width). `learned` are the two numbers of xielu.
    """
    if activation == "relu2":
        return F.relu(gate_up).square_()
    if activation == "gelu_alone":
        return F.gelu(gate_up, approximate="tanh")
    if activation == "xielu":
        assert learned is not None
        return _xielu(gate_up, learned.to(gate_up.dtype))
    if isinstance(activation, ClampedSwiglu):
        return _clamped_swiglu(gate_up, activation)
    gates, ups = gate_up.chunk(2, -1)
    if isinstance(activation, ClampedSilu):
        limit = activation.limit
        return F.silu(gates).clamp_(max=limit).mul_(ups.clamp(-limit, limit))
    return GATE_FUNCTIONS[activation](gates).mul_(ups)


def _xielu(x: Tensor, learned: Tensor) -> Tensor:
    above, below = learned
    bent = torch.where(x > 0, above * x * x, below * (torch.expm1(x.clamp(max=0)) - x))
    return bent.add_(x, alpha=0.5)


def finish_learned(learned: Tensor) -> None:
    """Make the numbers of xielu of those that files have: softplus(p), and 1/2 + softplus(n)."""
    numbers = [natural_logarithm(1 + exponential(one)) for one in learned.tolist()]
    learned.copy_(torch.tensor([numbers[0], 0.5 + numbers[1]]))


def _clamped_swiglu(gate_up: Tensor, function: ClampedSwiglu) -> Tensor:
    if function.has_pairs:
        gates, ups = gate_up[..., ::2], gate_up[..., 1::2]
    else:
        gates, ups = gate_up.chunk(2, -1)
    gates, ups = gates.clamp(max=function.limit), ups.clamp(-function.limit, function.limit)
    return gates.mul(function.alpha).sigmoid_().mul_(gates).mul_(ups + function.more)
