"""A mixture's packed experts, called with some tokens at once."""

from collections.abc import Sequence
from ctypes import addressof
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.layout import RECORD_BYTES, TILE, blocks_of, groups_of
from potluck.engine.kernels.mixtures.experts_kernel import AddUp, Each, Experts, emit_experts
from potluck.engine.kernels.products.product_kernel import PackedProduct
from potluck.engine.kernels.products.quantise_kernel import Quantise
from potluck.engine.kernels.products.tensors import PackedWeight
from potluck.engine.kernels.writing.memory import Record
from potluck.engine.pages import Scratch
from potluck.model.families.facts import Activation, gate_up_rows

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExpert:
    """The matrices of an expert, and their biases (rows,), f32, if there are any."""

    gate_up: PackedWeight
    down: PackedWeight
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


class PackedExperts:
    """Experts of one shape and format, whose memory stays where it is. It keeps it alive."""

    def __init__(
        self,
        experts: Sequence[PackedExpert],
        activation: Activation,
        kernels: GeneratedKernels,
        scratch: Scratch,
        *,
        scales_input: bool = False,
    ) -> None:
        """`scratch` holds what a call computes with, as many as `pair_bytes` says, of `model/footprint.py`.

        `scales_input`: factors multiply what experts read, not what they give.
        """
        gate_up, down = experts[0].gate_up, experts[0].down
        assert all(_shape(one.gate_up) == _shape(gate_up) for one in experts)
        assert all(_shape(one.down) == _shape(down) for one in experts)
        assert down.rows == gate_up.width
        assert gate_up.rows == gate_up_rows(activation, down.width)
        self._experts, self._kernels, self._scratch = tuple(experts), kernels, scratch
        self._scales_input = scales_input
        self._hidden, self._size, self._rows = gate_up.width, down.width, gate_up.rows
        self._run = kernels.compiled(emit_experts, gate_up.format, down.format, activation)
        self._gate_up = _addresses([one.gate_up.data for one in experts])
        self._down = _addresses([one.down.data for one in experts])
        self._gate_up_bias = _addresses([one.gate_up_bias for one in experts])
        self._down_bias = _addresses([one.down_bias for one in experts])

    def __call__(
        self, x: Tensor, factors: Tensor, per_token: int, scales: Tensor | None = None
    ) -> Tensor | None:
        """Return the sum of factor x expert over the experts that each token chose, (T, D), f32.

        Args:
            x: (T, D), f32.
            factors: (T, experts or more), f32; negative where an expert is not chosen.
            per_token: how many experts each token chose.
            scales: (experts,), f32, which multiply the factors; None: ones.

        Returns:
            None where tokens chose another number of experts, since factors are not numbers.
        """
        assert x.dtype == factors.dtype == torch.float32
        x, given = x.contiguous(), factors.numpy()
        tokens, experts = np.nonzero(~(given[:, : len(self._experts)] < 0))  # token by token
        if len(tokens) != len(x) * per_token:
            return None
        out = torch.empty_like(x)
        pairs = _Pairs.of(tokens, experts, len(self._experts))
        chosen = np.ascontiguousarray(given[tokens, experts])
        if scales is not None:
            chosen *= scales.numpy()[experts]
        if self._scales_input:
            x = x[pairs.rows] * torch.from_numpy(chosen[pairs.order])[:, None]
            pairs = replace(pairs, rows=np.arange(len(pairs.rows)))
            chosen = np.ones_like(chosen)
        self._compute(x, pairs, chosen, out)
        return out

    def _compute(
        self, x: Tensor, pairs: "_Pairs", factors: npt.NDArray[np.float32], out: Tensor
    ) -> None:
        count, hidden, size, rows = len(factors), self._hidden, self._size, self._rows
        records, gated = (count * groups_of(width) * RECORD_BYTES for width in (hidden, size))
        gates, results = (4 * count * width for width in (rows, hidden))
        # The results take the place of what is read before they are written.
        memory = self._scratch.floats(1, -(-(max(gates + records, results) + gated) // 4))
        gated_at = memory.data_ptr()
        gates_at = results_at = gated_at + gated
        records_at = gates_at + gates
        first, tokens = pairs.first, pairs.counts
        kind, of_expert = KINDS[torch.float32], pairs.experts
        inputs_at = records_at + first * groups_of(hidden) * RECORD_BYTES
        gates_of, results_of = gates_at + first * 4 * rows, results_at + first * 4 * hidden
        gated_of = gated_at + first * groups_of(size) * RECORD_BYTES
        inputs = _records(
            Quantise,
            source=x.data_ptr(),
            kind=kind,
            stride=hidden,
            width=hidden,
            tokens=tokens,
            records=inputs_at,
            rows=pairs.rows.ctypes.data + 8 * first,
        )
        gate_up = _records(
            PackedProduct,
            weights=self._gate_up[of_expert],
            inputs=inputs_at,
            out=gates_of,
            addend=self._gate_up_bias[of_expert],
            stride=0,
            groups=groups_of(hidden),
            rows=rows,
            tokens=tokens,
        )
        gate = _records(
            Quantise,
            source=gates_of,
            kind=kind,
            stride=rows,
            width=size,
            tokens=tokens,
            records=gated_of,
            rows=0,
        )
        down = _records(
            PackedProduct,
            weights=self._down[of_expert],
            inputs=gated_of,
            out=results_of,
            addend=self._down_bias[of_expert],
            stride=0,
            groups=groups_of(size),
            rows=hidden,
            tokens=tokens,
        )
        tiles = int(-(-tokens.max() // TILE))
        each = [
            Each.structure(arguments=given.ctypes.data, blocks=blocks)
            for given, blocks in (
                (inputs, tiles),
                (gate_up, blocks_of(rows)),
                (gate, tiles),
                (down, blocks_of(hidden)),
            )
        ]
        added = AddUp.structure(
            source=results_at,
            places=pairs.places.ctypes.data,
            factors=factors.ctypes.data,
            per_token=count // len(out),
            width=hidden,
            out=out.data_ptr(),
        )
        arguments = Experts.structure(
            **dict(zip(("inputs", "gate_up", "gated", "down"), map(addressof, each), strict=True)),
            added=addressof(added),
            experts=len(first),
            tokens=len(out),
            job=self._kernels.job,
            shares=self._kernels.shares,
        )
        self._kernels.wake()
        self._run(addressof(arguments))


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which tokens chose which experts, expert by expert."""

    order: _Numbers  # (pairs,): of each pair, which one it is token by token
    experts: _Numbers  # (n,): that have tokens
    first: _Numbers  # (n,): the first pair of each
    counts: _Numbers  # (n,): its pairs
    rows: _Numbers  # (pairs,): the token of each pair
    places: _Numbers  # (pairs,): for each token in turn, which pairs are its own, in the order of the experts

    @classmethod
    def of(cls, tokens: _Numbers, experts: _Numbers, count: int) -> "_Pairs":
        """Sort pairs that are given token by token."""
        order = np.argsort(experts, kind="stable")
        counts = np.bincount(experts, minlength=count)
        active = np.flatnonzero(counts)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        first = np.cumsum(counts) - counts
        return cls(order, active, first[active], counts[active], tokens[order], places)


def _records(record: type[Record], **values: "_Numbers | int") -> _Numbers:
    """The arguments of a kernel for each expert: rows of i64, as `Record` lays them out."""
    assert values.keys() == record.fields.keys()
    rows = max(len(value) for value in values.values() if not isinstance(value, int))
    made = np.empty((rows, len(record.fields)), np.int64)
    for column, field in enumerate(record.fields):
        made[:, column] = values[field]
    return made


def _addresses(tensors: Sequence[Tensor | None]) -> _Numbers:
    return np.array([0 if one is None else one.data_ptr() for one in tensors], np.int64)


def _shape(weight: PackedWeight) -> tuple[int, int, object]:
    return weight.rows, weight.width, weight.format
