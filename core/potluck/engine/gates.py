"""How the gates of an MLP are applied, in torch."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.model.families.facts import Activation, ClampedSwiglu, GateFunction

GATE_FUNCTIONS: dict[GateFunction, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
}


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return what the activation makes of each row of gates and ups, (T, 2 width) → (T, width).

    A row has its gates before its ups, unless the activation has pairs of them.
    """
    if isinstance(activation, ClampedSwiglu):
        return _clamped_swiglu(gate_up, activation)
    gates, ups = gate_up.chunk(2, -1)
    return GATE_FUNCTIONS[activation](gates).mul_(ups)


def _clamped_swiglu(gate_up: Tensor, function: ClampedSwiglu) -> Tensor:
    if function.has_pairs:
        gates, ups = gate_up[..., ::2], gate_up[..., 1::2]
    else:
        gates, ups = gate_up.chunk(2, -1)
    gates, ups = gates.clamp(max=function.limit), ups.clamp(-function.limit, function.limit)
    return gates.mul(function.alpha).sigmoid_().mul_(gates).mul_(ups + function.more)
