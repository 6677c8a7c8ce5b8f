"""Latent attention of one token in a layer's kernel: from the first product to what the output's product reads."""

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import Attend
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.forms import Form
from potluck.engine.kernels.ir_types import NULL
from potluck.engine.kernels.latent_kernel import HeadProducts, LatentHeads, LatentRows
from potluck.engine.kernels.memory import Pointer, Record
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """What latent attention of a layer is written for, beside the layer's own formats."""

    heads: LatentHeads
    query_rank: int | None  # None: the first product gives the queries
    query_format: WeightFormat | None  # of the matrix that makes queries of their latent
    key_format: WeightFormat
    value_format: WeightFormat

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
    rows: ir.Function  # made by `emit_latent_rows`
    attend: ir.Function
    step: Record
    layer: Record

    def emit(self) -> None:
        """Compute `attended` of `wide`, the first product."""
        shape, step, layer = self.shape, self.step, self.layer
        heads = shape.heads
        queries, latents = self._queries()
        self._cache(queries, latents)
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

    def _attend(self) -> None:
        step, layer = self.step, self.layer
        cached = ("keys", "values", "head_stride", "own_from", "window")
        shared = ("shared_keys", "shared_values", "shared_stride")
        arguments = Attend.store(
            self.e,
            queries=step["absorbed"],
            position=step["position"],
            sinks=NULL,
            parts=step["parts"],
            out=step["mixed"],
            job=step["job"],
            shares=step["shares"],
            **{name: layer[name] for name in (*cached, *shared)},
        )
        self.e.call(self.attend, [arguments])

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
