"""Latent attention of one token in a layer's kernel: from the first product to what the output's product reads."""

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention_kernel import Attend
from potluck.engine.kernels.attending.index_kernel import Choose, CopyRows, IndexHeads, IndexKeys
from potluck.engine.kernels.attending.latent_kernel import HeadProducts, LatentHeads, LatentRows
from potluck.engine.kernels.decoding.forms import FloatForm, Form
from potluck.engine.kernels.decoding.pool_index_calls import PoolIndexCalls, PoolIndexShape
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import NULL
from potluck.engine.kernels.writing.memory import Pointer, Record
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """What latent attention of a layer is written for, beside the layer's own formats."""

    heads: LatentHeads
    query_rank: int | None  # None: the first product gives the queries
    query_format: WeightFormat | None  # of the matrix that makes queries of their latent
    key_format: WeightFormat
    value_format: WeightFormat
    index: IndexHeads | None = None  # of the indexer, if there is one
    pools: PoolIndexShape | None = None  # of an indexer of pools, if there is one
    follows: int | None = None  # tokens that it sees of those that an earlier layer has chosen
    index_queries_format: WeightFormat | None = None
    index_keys_format: WeightFormat | None = None

    @property
    def sees(self) -> int | None:
        """The most tokens that a query sees; None: it sees all."""
        if self.pools is not None:
            return self.pools.heads.sees
        return self.follows if self.index is None else self.index.chosen

    @property
    def has_indexer(self) -> bool:
        return self.index is not None or self.pools is not None

    @property
    def queries(self) -> int:
        """Numbers of a token's queries."""
        return self.heads.heads * self.heads.query_dim

    @property
    def rows(self) -> int:
        """Rows of the first matrix."""
        return (self.query_rank or self.queries) + self.heads.row


@dataclass(frozen=True, kw_only=True)
class LatentCalls:
    """Emits latent attention."""

    e: Emitter
    shape: LatentShape
    forms: Mapping[WeightFormat, Form]
    router: FloatForm  # of a matrix of f32
    rows: ir.Function  # made by `emit_latent_rows`
    attend: ir.Function
    # Made by `emit_index_keys` and `emit_choose_tokens` if there is an indexer, by `emit_copy_rows` if the layer
    # follows another's; of an indexer of pools see there.
    index: tuple[ir.Function, ...]
    step: Record
    layer: Record
    normed: tuple[Pointer, int]  # the normed hidden states in f32, and how many; for an indexer

    def emit(self) -> None:
        """Compute `attended` of `wide`, the first product."""
        shape, step, layer = self.shape, self.step, self.layer
        heads = shape.heads
        queries, latents = self._queries()
        self._cache(queries, latents)
        if shape.index is not None:
            self._cache_key(shape.index)
        if shape.pools is not None:
            self._of_pools(shape.pools).cache_key()
        self._multiply(
            shape.key_format,
            (layer["key_up"], heads.rank, heads.plain_dim),
            (queries, heads.query_dim),
            (step["absorbed"], heads.row),
        )
        self._attend()
        self._multiply(
            shape.value_format,
            (layer["value_up"], heads.value_dim, heads.rank),
            (step["mixed"], heads.rank),
            (step["attended"], heads.value_dim),
        )

    def _queries(self) -> tuple[Pointer, Pointer]:
        """Return where the queries are, and what becomes the cached row."""
        shape, step, layer = self.shape, self.step, self.layer
        wide: Pointer = step["wide"]
        if shape.query_rank is None or shape.query_format is None:
            return wide, wide + shape.queries
        form, width = self.forms[shape.query_format], shape.query_rank
        inputs = form.normed(wide, width, layer["query_norm"], shape.heads.epsilon)
        form.multiply(layer["queries"], inputs, step["queries"], NULL, shape.queries, width)
        return step["queries"], wide + width

    def _cache(self, queries: Pointer, latents: Pointer) -> None:
        e, step, layer = self.e, self.step, self.layer
        angles = step["angles"][layer["rope"]]
        arguments = LatentRows.store(
            e,
            queries=queries,
            latents=latents,
            stride=0,
            absorbed=step["absorbed"],
            cosines=angles.cosines,
            sines=angles.sines,
            query_factors=angles.query_factors,
            norm=layer["key_norm"],
            keys=layer["keys"],
            position=step["position"],
        )
        e.call(self.rows, [arguments, e.index(0), e.index(1)])

    def _cache_key(self, index: IndexHeads) -> None:
        """Make the indexer's key of the normed hidden states, and cache it."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        assert shape.index_keys_format is not None
        form, (normed, width) = self.forms[shape.index_keys_format], self.normed
        inputs = form.as_is(normed, width)
        form.multiply(layer["index_keys"], inputs, step["index_key"], NULL, index.head_dim, width)
        angles = step["angles"][layer["rope"]]
        arguments = IndexKeys.store(
            e,
            index_keys=step["index_key"],
            stride=0,
            norm=layer["index_norm"],
            norm_bias=layer["index_norm_bias"],
            cosines=angles.cosines,
            sines=angles.sines,
            keys=layer["keys"],
            position=step["position"],
        )
        e.call(self.index[0], [arguments, e.index(0), e.index(1)])

    def _choose(self, index: IndexHeads) -> None:
        """Choose what the token sees, and copy these rows."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        normed, width = self.normed
        self.router.multiply(
            layer["head_weights"], normed, step["head_weights"], NULL, index.heads, width
        )
        assert shape.index_queries_format is not None
        assert shape.query_rank is not None
        form, rank = self.forms[shape.index_queries_format], shape.query_rank
        inputs = form.normed(step["wide"], rank, layer["query_norm"], shape.heads.epsilon)
        out = step["index_queries"]
        form.multiply(layer["index_queries"], inputs, out, NULL, index.q_size, rank)
        angles = step["angles"][layer["rope"]]
        cached = ("keys", "head_stride", "own_from", "shared_keys", "shared_stride")
        memory = ("position", "scores", "places", "rows", "job", "shares")
        arguments = Choose.store(
            e,
            queries=out,
            weights=step["head_weights"],
            cosines=angles.cosines,
            sines=angles.sines,
            **{name: layer[name] for name in cached},
            **{name: step[name] for name in memory},
        )
        e.call(self.index[1], [arguments])

    def _copy(self, follows: int) -> None:
        """Copy the rows that an earlier layer has chosen."""
        step, layer = self.step, self.layer
        cached = {name: layer[name] for name in ("keys", "own_from", "shared_keys")}
        arguments = CopyRows.store(self.e, places=step["places"], rows=step["rows"], **cached)
        self.router.threads.call(self.index[0], arguments, follows)

    def _of_pools(self, shape: PoolIndexShape) -> PoolIndexCalls:
        return PoolIndexCalls(
            e=self.e,
            shape=shape,
            forms=self.forms,
            router=self.router,
            functions=self.index,
            step=self.step,
            layer=self.layer,
            normed=self.normed,
        )

    def _see_chosen(self, sees: int) -> Value:
        """Copy the rows that the token sees, of more; return the number of the last."""
        shape = self.shape
        if shape.pools is not None:
            assert shape.query_rank is not None
            return self._of_pools(shape.pools).choose(shape.query_rank, shape.heads.epsilon) - 1
        if shape.index is not None:
            self._choose(shape.index)
        else:
            self._copy(sees)
        return self.e.index(sees - 1)

    def _attend(self) -> None:
        e, step, layer = self.e, self.step, self.layer
        names = ("keys", "values", "head_stride", "own_from", "window")
        shared = ("shared_keys", "shared_values", "shared_stride")
        cached = {name: layer[name] for name in (*names, *shared)}
        cached["position"] = step["position"]
        if (sees := self.shape.sees) is not None:
            is_longer = step["position"] >= sees
            last = e.variable(e.index(0))
            with e.if_then(is_longer):
                last.value = self._see_chosen(sees)
            chosen = {"keys": step["rows"], "values": step["rows"], "own_from": e.index(0)}
            for name, value in (chosen | {"position": last.value}).items():
                cached[name] = e.select(is_longer, value, cached[name])
        arguments = Attend.store(
            e,
            queries=step["absorbed"],
            sinks=NULL,
            parts=step["parts"],
            out=step["mixed"],
            job=step["job"],
            shares=step["shares"],
            **cached,
        )
        e.call(self.attend, [arguments])

    def _multiply(
        self,
        held: WeightFormat,
        matrices: tuple[Pointer, int, int],
        source: tuple[Pointer, int],
        out: tuple[Pointer, int],
    ) -> None:
        """Multiply each head's numbers with its matrix: (address, rows, width); others are (address, stride)."""
        memory, rows, width = matrices
        arguments = HeadProducts.store(
            self.e,
            matrices=memory,
            source=source[0],
            source_stride=source[1],
            inputs=self.step["head_inputs"],
            out=out[0],
            out_stride=out[1],
        )
        self.forms[held].multiply_heads(arguments, self.shape.heads.heads, rows, width)
