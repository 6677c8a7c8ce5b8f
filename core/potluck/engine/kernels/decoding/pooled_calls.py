"""Attention to pools of tokens in a layer's kernel: from the first product to what the output's product reads."""

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention_kernel import Attend
from potluck.engine.kernels.attending.latent_kernel import HeadProducts
from potluck.engine.kernels.attending.pooled_kernel import (
    PooledHeads,
    PooledRows,
    SeenRows,
    emit_turn,
    window_of,
)
from potluck.engine.kernels.attending.pools_kernel import ChoosePools, PoolScores
from potluck.engine.kernels.decoding.forms import FloatForm, Form
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import NULL
from potluck.engine.kernels.writing.memory import Pointer, Record
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledShape:
    """What such attention of a layer is written for, beside the layer's own formats."""

    heads: PooledHeads
    query_rank: int
    groups: int  # of heads
    group_rank: int
    queries_format: WeightFormat
    group_format: WeightFormat
    pooling_format: WeightFormat | None = None  # None: there are no pools
    index_format: WeightFormat | None = None  # of the matrix of the indexer's queries

    @property
    def rows(self) -> int:
        """Rows of the first matrix."""
        return self.query_rank + self.heads.attention.head_dim

    @property
    def queries(self) -> int:
        return self.heads.attention.heads * self.heads.attention.head_dim

    @property
    def latents(self) -> int:
        """Numbers that the output is made of."""
        return self.groups * self.group_rank


@dataclass(frozen=True, kw_only=True)
class PooledCalls:
    """Emits attention to pools."""

    e: Emitter
    shape: PooledShape
    forms: Mapping[WeightFormat, Form]
    router: FloatForm  # of a matrix of f32
    rows: ir.Function  # made by `emit_pooled_rows`
    attend: ir.Function
    copy: ir.Function  # made by `emit_seen_rows`
    choose: ir.Function | None  # made by `emit_choose_pools`
    step: Record
    layer: Record
    normed: tuple[Pointer, int]  # the normed hidden states in f32, and how many

    def emit(self) -> None:
        """Compute `attended` of `wide`, the first product."""
        shape, step, layer = self.shape, self.step, self.layer
        rank, queries = shape.query_rank, shape.queries
        self._latents_times(shape.queries_format, "queries", step["queries"], queries)
        if (held := shape.pooling_format) is not None:
            form, (normed, width) = self.forms[held], self.normed
            inputs, rows = form.as_is(normed, width), shape.heads.pooling
            form.multiply(layer["pooling"], inputs, step["pooling"], NULL, rows, width)
        self._cache(step["wide"] + rank)
        self._attend(*self._see())
        heads = shape.heads.attention
        with self.e.loop(0, heads.heads) as head:
            mixed = step["mixed"] + head * heads.head_dim
            rotary = shape.heads.rotary_dim
            emit_turn(self.e, mixed, heads.head_dim, rotary, self._angles(), back=True)
        width = queries // shape.groups
        arguments = HeadProducts.store(
            self.e,
            matrices=layer["group_output"],
            source=step["mixed"],
            source_stride=width,
            inputs=step["head_inputs"],
            out=step["attended"],
            out_stride=shape.group_rank,
        )
        form = self.forms[shape.group_format]
        form.multiply_heads(arguments, shape.groups, shape.group_rank, width)

    def _latents_times(self, held: WeightFormat, matrix: str, out: Pointer, rows: int) -> None:
        """Write the product of a matrix and the queries' normed latent."""
        form, rank = self.forms[held], self.shape.query_rank
        norm, epsilon = self.layer["query_norm"], self.shape.heads.epsilon
        inputs = form.normed(self.step["wide"], rank, norm, epsilon)
        form.multiply(self.layer[matrix], inputs, out, NULL, rows, rank)

    def _angles(self) -> tuple[Pointer, Pointer]:
        angles = self.step["angles"][self.layer["rope"]]
        return angles.cosines, angles.sines

    def _cache(self, key: Pointer) -> None:
        """Turn queries and key, and cache what is kept of the token."""
        e, step, layer = self.e, self.step, self.layer
        cosines, sines = self._angles()
        own = (
            "key_norm",
            "pool_norm",
            "pool_bias",
            "index_norm",
            "index_bias",
            "keys",
            "pool_rows",
        )
        given = ("queries", "pooling", "pool_cosines", "pool_sines", "pooled", "position")
        arguments = PooledRows.store(
            e,
            key=key,
            cosines=cosines,
            sines=sines,
            **{name: layer[name] for name in own},
            **{name: step[name] for name in given},
        )
        e.call(self.rows, [arguments])

    def _see(self) -> tuple[Value, Value]:
        """Choose pools, if something does; return how many are seen, and where they are said, or null."""
        e, heads, step = self.e, self.shape.heads, self.step
        if not heads.rate:
            return e.index(0), e.value(NULL)
        count = (step["position"] + 1) // heads.rate
        if heads.index is None:
            return count, e.value(NULL)
        with e.if_then(count > 0):
            self._choose(heads.index, count)
        return count.at_most(heads.index.chosen), step["pools"]

    def _choose(self, index: PoolScores, count: Value) -> None:
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        heads, (normed, width) = shape.heads, self.normed
        weights, queries = step["head_weights"], step["index_queries"]
        self.router.multiply(layer["head_weights"], normed, weights, NULL, index.heads, width)
        assert shape.index_format is not None
        self._latents_times(shape.index_format, "index_queries", queries, index.q_size)
        with e.loop(0, index.heads) as head:
            query = queries + head * index.head_dim
            emit_turn(e, query, index.head_dim, heads.rotary_dim, self._angles())
        arguments = ChoosePools.store(
            e,
            queries=queries,
            weights=weights,
            keys=layer["pool_rows"].skip(heads.attention.head_dim * heads.number_bytes),
            own_from=0,
            shared_keys=NULL,
            stride=heads.unit * heads.number_bytes,
            count=count,
            places=step["pools"],
            **{name: step[name] for name in ("scores", "job", "shares")},
        )
        assert self.choose is not None
        e.call(self.choose, [arguments])

    def _attend(self, pools: Value, places: Value) -> None:
        """Attend to the last tokens and so many pools."""
        e, heads, step, layer = self.e, self.shape.heads, self.step, self.layer
        first, tokens = window_of(e, heads, step["position"] + 1)
        rows = {name: layer[name] for name in ("keys", "pool_rows")}
        arguments = SeenRows.store(
            e, first=first, tokens=tokens, places=places, rows=step["rows"], **rows
        )
        self.router.threads.call(self.copy, arguments, tokens + pools)
        arguments = Attend.store(
            e,
            queries=step["queries"],
            keys=step["rows"],
            values=step["rows"],
            head_stride=0,
            own_from=0,
            shared_keys=NULL,
            shared_values=NULL,
            shared_stride=0,
            sinks=layer["sinks"],
            position=tokens + pools - 1,
            window=layer["window"],
            out=step["mixed"],
            **{name: step[name] for name in ("parts", "job", "shares")},
        )
        e.call(self.attend, [arguments])
