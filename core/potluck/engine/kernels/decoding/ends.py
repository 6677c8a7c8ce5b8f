"""The two ends of a model for one token, each in one call: a row of the embedding, and the head."""

import ctypes

import torch
from torch import Tensor

from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.decoding.head_kernel import HeadShape, HeadStep, emit_head
from potluck.engine.kernels.decoding.streams_kernel import LANES, StreamShape, check_mix
from potluck.engine.kernels.layout import groups_of, input_bytes
from potluck.engine.kernels.products.lookup_kernel import emit_lookup
from potluck.engine.kernels.products.tensors import MixTensors, PackedWeight
from potluck.model.families.facts import NormKind


class EmbeddingLookup:
    """Rows of a packed matrix, which it keeps alive."""

    def __init__(
        self, kernels: GeneratedKernels, weight: PackedWeight, multiplier: float = 1.0
    ) -> None:
        self._look_up = kernels.compiled(emit_lookup, weight.format)
        self._weight, self._matrix = weight, weight.data.data_ptr()
        self._groups, self._multiplier = groups_of(weight.width), multiplier

    def __call__(self, row: int, out: int) -> None:
        """Write a row times the multiplier, as whole groups of f32, to the address `out`."""
        assert 0 <= row < self._weight.rows
        self._look_up(self._matrix, self._groups, row, self._multiplier, out)


class Head:
    """Final norm and packed `lm_head`, both kept alive, and memory for the logits of one token."""

    def __init__(
        self,
        kernels: GeneratedKernels,
        norm: Tensor,
        epsilon: float,
        weight: PackedWeight,
        norm_kind: NormKind = "root mean square",
        addend: Tensor | None = None,
        streams: StreamShape | None = None,
        mix: MixTensors | None = None,
    ) -> None:
        """Make it. `streams` are those of the hidden states, if they are several: `mix` makes one of them, or their mean."""
        assert norm.dtype == torch.float32
        assert norm.is_contiguous()
        assert norm.shape == ((2,) if norm_kind == "biased layer" else ()) + (weight.width,)
        shape = HeadShape(
            hidden=weight.width,
            rows=weight.rows,
            weight_format=weight.format,
            epsilon=epsilon,
            norm_kind=norm_kind,
            streams=streams,
            averages=mix is None,
        )
        memory: dict[str, Tensor] = {}
        if streams is not None:
            sizes = ("block", streams.hidden), ("normed", streams.width), ("stream_shares", LANES)
            memory = {name: torch.empty(size) for name, size in sizes}
        if streams is not None and mix is not None:
            check_mix(mix, streams, is_head=True)
            memory |= {f"mix_{name}": one for name, one in mix._asdict().items()}
        self.logits = torch.zeros(weight.rows)  # (V,), f32: of the last call
        self._kernels, self._run = kernels, kernels.compiled(emit_head, shape)
        addend = None if addend is None else addend.float().contiguous()
        records = torch.empty(input_bytes(1, weight.width), dtype=torch.uint8)
        self._memory = norm, weight, records, addend, memory
        self._step = HeadStep.structure(
            norm=norm.data_ptr(),
            records=records.data_ptr(),
            matrix=weight.data.data_ptr(),
            addend=0 if addend is None else addend.data_ptr(),
            logits=self.logits.data_ptr(),
            job=kernels.job,
            shares=kernels.shares,
            **{name: one.data_ptr() for name, one in memory.items()},
        )
        self._address = ctypes.addressof(self._step)

    def __call__(self, hidden: int) -> int | None:
        """Compute the logits of hidden states, f32, at this address.

        Returns:
            The first of the largest logits; None where one of them is not finite.
        """
        self._step.hidden = hidden
        self._kernels.wake()
        best = self._run(self._address)
        return None if best < 0 else best
