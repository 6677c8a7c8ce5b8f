"""The experts of a mixture on an NVIDIA GPU: those that were chosen, without asking the GPU which."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from potluck.engine.accelerator.nvidia.linear import NvidiaLinear
from potluck.engine.accelerator.nvidia.operators import NvidiaOperators
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mlp import Mlp
from potluck.model.families.facts import Activation

_FEW = 4  # tokens; of more, those that chose the same expert are computed side by side, which reads it once
_MOST_EACH = 32  # tokens of an expert, on average; with more, tensor cores are faster: each expert is computed by itself then


class _Matrices:
    """A matrix of each expert, all of one shape and format."""

    def __init__(self, each: Sequence[NvidiaLinear], operators: NvidiaOperators) -> None:
        self._each, self._operators = tuple(each), operators  # keeps their memory
        self._table = _addresses([one.address for one in each], operators)
        biases = [one.bias.data_ptr() for one in each if one.bias is not None]
        self._biases = _addresses(biases, operators) if biases else None

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        one = self._each[0]
        return self._operators.multiply_chosen(
            self._table, self._biases, one.format, one.rows, x.contiguous(), chosen
        )


class NvidiaExperts:
    """The chosen experts of some tokens, in two products."""

    def __init__(
        self,
        gate_up: Sequence[NvidiaLinear],
        down: Sequence[NvidiaLinear],
        activation: Activation,
        gate: Callable[[Tensor, Activation], Tensor],
        *,
        scales_input: bool,
    ) -> None:
        """`scales_input`: factors multiply what experts read."""
        operators = gate_up[0].operators
        self._gate_up, self._down = _Matrices(gate_up, operators), _Matrices(down, operators)
        self._activation: Activation = activation
        self._gate, self._scales_input, self._count = gate, scales_input, len(gate_up)

    def __call__(
        self, x: Tensor, factors: Tensor, per_token: int, scales: Tensor | None
    ) -> Tensor | None:
        """(T, D), and factors (T, experts or more) as `route` gives them → (T, D), f32; None: there are too many tokens."""
        tokens = len(x)
        if tokens * per_token > _MOST_EACH * self._count:
            return None
        weights, chosen = factors[:, : self._count].topk(per_token, -1)  # (T, k)
        if scales is not None:
            weights = weights * scales[chosen]
        if self._scales_input:
            x = (x[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1)  # (T·k, D)
        which, order = chosen.flatten(), None
        if tokens > _FEW:
            which, order = which.sort()
            x = x[order] if self._scales_input else x[order // per_token]
        gated = self._gate(self._gate_up(x, which), self._activation)
        y = self._down(gated, which)
        if order is not None:
            y = torch.empty_like(y).index_copy_(0, order, y)
        y = y.view(tokens, per_token, -1).float()
        return y.sum(1) if self._scales_input else (y * weights[..., None]).sum(1)


def experts_of(
    mlps: Sequence[Mlp],
    activation: Activation,
    gate: Callable[[Tensor, Activation], Tensor],
    *,
    scales_input: bool,
) -> NvidiaExperts | None:
    """What computes the chosen ones of these experts; None: they are held in some other way."""
    gate_up, down = (_alike([part(mlp) for mlp in mlps]) for part in (_gate_up_of, _down_of))
    if gate_up is None or down is None:
        return None
    return NvidiaExperts(gate_up, down, activation, gate, scales_input=scales_input)


def _gate_up_of(mlp: Mlp) -> Linear:
    return mlp.gate_up


def _down_of(mlp: Mlp) -> Linear:
    return mlp.down


def _alike(matrices: Sequence[Linear]) -> Sequence[NvidiaLinear] | None:
    """The matrices, if our kernels multiply with all of them, and they differ in their numbers alone."""
    ours = [one for one in matrices if isinstance(one, NvidiaLinear)]
    kinds = {(one.format, one.rows, one.width, one.bias is None) for one in ours}
    return ours if len(ours) == len(matrices) and len(kinds) == 1 else None


def _addresses(each: Sequence[int], operators: NvidiaOperators) -> Tensor:
    return torch.tensor(each, dtype=torch.int64, device=operators.device)
