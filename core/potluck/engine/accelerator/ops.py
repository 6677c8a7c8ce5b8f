"""Choose a layer's operators on a device: torch's own, if they give right numbers there.

The others are replaced by slower ones, made of operators so simple that every device has them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from potluck.engine.accelerator.nvidia.operators import NvidiaOperators, find_operators
from potluck.engine.accelerator.probe import attends, norms_work
from potluck.engine.gates import gate
from potluck.engine.layers.attention import Attention, EagerAttention, ExpandedAttention
from potluck.engine.layers.mlp import Gate
from potluck.engine.layers.norms import Norm, plain_norm, torch_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOps:
    """What layers are built of."""

    attention: Callable[..., Attention] = Attention
    norm: Norm = torch_norm
    gate: Gate = gate


def choose_ops(device: torch.device, dtype: torch.dtype) -> LayerOps:
    """Try torch's operators and our own on this device, and take those that are right."""
    if device.type == "cpu":
        return LayerOps()
    norm = torch_norm if norms_work(device) else plain_norm
    ops = LayerOps(attention=_choose_attention(device, dtype), norm=norm)
    operators = find_operators(device, dtype)
    return ops if operators is None else _with_ours(ops, operators)


@cache
def _with_ours(ops: LayerOps, operators: NvidiaOperators) -> LayerOps:
    """The same with our own kernels in the place of those operators that they are faster than."""
    from potluck.engine.accelerator.aligned import AlignedAttention
    from potluck.engine.accelerator.nvidia.layers import (
        NvidiaAttention,
        gate_of,
        norm_of,
        turns_heads,
    )

    ops = replace(ops, norm=norm_of(operators, ops.norm), gate=gate_of(operators))
    if ops.attention is AlignedAttention and turns_heads(operators):
        return replace(ops, attention=partial(NvidiaAttention, operators=operators))
    return ops


def _choose_attention(device: torch.device, dtype: torch.dtype) -> type[Attention]:
    """The first kind of attention that is right. `EagerAttention` is right on every device."""
    for kind in _kinds(device, dtype):
        if attends(kind, device, dtype):
            return kind
    return EagerAttention


def _kinds(device: torch.device, dtype: torch.dtype) -> tuple[type[Attention], ...]:
    """The kinds of attention to try, the fastest first."""
    if device.type != "cuda":
        return Attention, ExpandedAttention
    # Imported late: it imports torch's compiler, which takes a second.
    from potluck.engine.accelerator.aligned import AlignedAttention, has_flash

    # Without flash attention, heads that share keys hold all scores in memory at once: at 8192 cached
    # tokens half a gigabyte and more. With expanded keys, torch has a kernel that holds no scores.
    if has_flash(device, dtype):
        return AlignedAttention, ExpandedAttention
    return (ExpandedAttention,)
