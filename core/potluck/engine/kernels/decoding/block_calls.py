"""An indexer of blocks for each head of keys in a layer's kernel: what it caches of a token, and what the token sees."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from llvmlite import ir
from torch import Tensor

from potluck.engine.kernels.attending.blocks_kernel import (
    BlockHeads,
    BlockKeys,
    ChooseBlocks,
    seen_tokens,
)
from potluck.engine.kernels.decoding.forms import Form
from potluck.engine.kernels.products.tensors import Weight
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import NULL, Operand
from potluck.engine.kernels.writing.memory import Pointer, Record
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """What the indexer of a layer is written for."""

    heads: BlockHeads
    input_format: WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights:
    """What only such an indexer has."""

    heads: BlockHeads
    input: Weight  # (H·K + K, D)
    query_norm: Tensor  # (K,)
    key_norm: Tensor

    @property
    def shape(self) -> BlockShape:
        return BlockShape(heads=self.heads, input_format=self.input.format)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By the names of the fields in a layer's record."""
        return {
            "index_queries": self.input.data,
            "index_query_norm": self.query_norm,
            "index_norm": self.key_norm,
        }

    def check(self, hidden: int) -> None:
        """Check the tensors, since the kernel checks nothing."""
        size = self.heads.head_dim
        assert (self.input.rows, self.input.width) == (self.heads.q_size + size, hidden)
        for norm in (self.query_norm, self.key_norm):
            assert norm.dtype == torch.float32
            assert norm.is_contiguous()
            assert norm.shape == (size,)


@dataclass(frozen=True, kw_only=True)
class BlockCalls:
    """Emits the indexer."""

    e: Emitter
    shape: BlockShape
    forms: Mapping[WeightFormat, Form]
    functions: tuple[ir.Function, ...]  # made by `emit_block_keys` and `emit_choose_blocks`
    step: Record
    layer: Record
    normed: tuple[Pointer, int]  # the normed hidden states in f32, and how many

    def note(self) -> None:
        """Make queries and key of the normed hidden states, and cache the key."""
        e, heads, step, layer = self.e, self.shape.heads, self.step, self.layer
        made, (normed, width) = step["index_queries"], self.normed
        form, rows = self.forms[self.shape.input_format], heads.q_size + heads.head_dim
        form.multiply(layer["index_queries"], form.as_is(normed, width), made, NULL, rows, width)
        angles = step["angles"][layer["rope"]]
        arguments = BlockKeys.store(
            e,
            made=made,
            query_norm=layer["index_query_norm"],
            key_norm=layer["index_norm"],
            cosines=angles.cosines,
            sines=angles.sines,
            position=step["position"],
            **{name: layer[name] for name in ("keys", "head_stride")},
        )
        e.call(self.functions[0], [arguments])

    def see(self, cached: Mapping[str, Operand]) -> dict[str, Operand]:
        """What attention goes through: fields of a cache as `Attend` has them, or in their place those of chosen rows."""
        e, heads, step = self.e, self.shape.heads, self.step
        nbytes = heads.attention.cached_bytes
        is_longer = step["position"] >= heads.sees
        with e.if_then(is_longer):
            names = ("token_scores", "position", "places", "rows", "job", "shares")
            arguments = ChooseBlocks.store(
                e,
                queries=step["index_queries"],
                block_scores=step["scores"],
                **{name: step[name] for name in names},
                **cached,
            )
            e.call(self.functions[1], [arguments])
        chosen: dict[str, Operand] = {
            "keys": step["rows"],
            "values": step["rows"].skip(heads.heads * heads.sees * nbytes),
            "head_stride": e.index(heads.sees * nbytes),
            "own_from": e.index(0),
            "position": seen_tokens(heads, step["position"]) - 1,
        }
        given = {**cached, "position": step["position"]}
        selected = {name: e.select(is_longer, one, given[name]) for name, one in chosen.items()}
        return {**given, **selected}
