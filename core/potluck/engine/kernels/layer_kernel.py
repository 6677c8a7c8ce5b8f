"""The kernel of decoding: one token through decoder layers, in one call.

    hidden += output(attend(rotate(qkv(norm(hidden)))))
    hidden += down(gated(gate_up(norm(hidden))))

for each layer, hidden states f32 and updated in place. What all layers share in a step stands in one
record, what a layer has of its own in another; both are 8 bytes a field, in the order below. With a
pool, products and attention are shared among its threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import ATTEND_FIELDS, Heads, emit_attend, emit_rotate
from potluck.engine.kernels.emit import (
    F32,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    POINTER,
    VOID,
    Emitter,
    Value,
    constant,
)
from potluck.engine.kernels.input_kernel import (
    emit_gated_quantise,
    emit_norm_quantise,
    emit_quantise,
)
from potluck.engine.kernels.layout import blocks_of, groups_of
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import emit_run
from potluck.engine.kernels.product_kernel import emit_product_piece

STEP_FIELDS = (
    "hidden", "position", "cosines", "sines", "records", "wide", "attended", "scores",
    "scores_stride", "job", "shares",
)  # fmt: skip
LAYER_FIELDS = (
    "input_norm", "qkv", "qkv_bias", "query_norm", "key_norm", "output", "post_norm", "gate_up",
    "down", "keys", "values", "head_stride", "window",
)  # fmt: skip
_NUMBERS = {"position", "scores_stride", "shares", "head_stride", "window"}

# step, the layers' records one after the other, their number
DECODE = ir.FunctionType(VOID, [POINTER, POINTER, I64])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What a decoding kernel is written for."""

    hidden: int
    intermediate: int
    attention: Heads
    epsilon: float  # of the norms before attention and MLP
    qkv_bits: int
    output_bits: int
    gate_up_bits: int
    down_bits: int

    @property
    def qkv_rows(self) -> int:
        return (self.attention.heads + 2 * self.attention.kv_heads) * self.attention.head_dim

    @property
    def attended(self) -> int:
        return self.attention.heads * self.attention.head_dim


def emit_decode(module: ir.Module, name: str, path: Path, shape: LayerShape) -> ir.Function:
    """One token through some layers."""
    pieces = {
        bits: emit_product_piece(module, f"{name}_product{bits}", path, bits, tiles=(1,))
        for bits in sorted({shape.qkv_bits, shape.output_bits, shape.gate_up_bits, shape.down_bits})
    }
    called = _Called(
        products=pieces,
        norm=emit_norm_quantise(module, f"{name}_norm", path),
        quantise=emit_quantise(module, f"{name}_quantise", path),
        gated=emit_gated_quantise(module, f"{name}_gated", path, "silu"),
        rotate=emit_rotate(module, f"{name}_rotate", path, shape.attention),
        attend=emit_attend(module, f"{name}_attend", path, shape.attention),
        run=emit_run(module, f"{name}_run", path),
    )
    function = ir.Function(module, DECODE, name)
    step, layers, count = function.args
    e = Emitter(function, path)
    given = _fields(e, step, STEP_FIELDS)
    with e.loop(0, count) as index:
        own = _fields(e, e.at(layers, index, 8 * len(LAYER_FIELDS)), LAYER_FIELDS)
        _Layer(e=e, shape=shape, called=called, step=given, layer=own).emit()
    e.ret_void()
    return function


def _fields(e: Emitter, record: Value, names: Sequence[str]) -> dict[str, Value]:
    return {
        name: e.fetch(e.at(record, 8 * index), I64 if name in _NUMBERS else POINTER)
        for index, name in enumerate(names)
    }


@dataclass(frozen=True, kw_only=True)
class _Called:
    """The functions that a layer is made of."""

    products: dict[int, ir.Function]
    norm: ir.Function
    quantise: ir.Function
    gated: ir.Function
    rotate: ir.Function
    attend: ir.Function
    run: ir.Function


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """One layer, being written."""

    e: Emitter
    shape: LayerShape
    called: _Called
    step: dict[str, Value]
    layer: dict[str, Value]

    def emit(self) -> None:
        shape, step, layer = self.shape, self.step, self.layer
        hidden, wide = step["hidden"], step["wide"]
        nothing = ir.Constant(POINTER, None)
        self._norm("input_norm")
        self._product("qkv", shape.qkv_bits, shape.qkv_rows, shape.hidden, wide, layer["qkv_bias"])
        self._attention()
        self._quantise(self.called.quantise, step["attended"], shape.attended)
        self._product("output", shape.output_bits, shape.hidden, shape.attended, hidden, hidden)
        self._norm("post_norm")
        self._product(
            "gate_up", shape.gate_up_bits, 2 * shape.intermediate, shape.hidden, wide, nothing
        )
        self._quantise(self.called.gated, wide, shape.intermediate)
        self._product("down", shape.down_bits, shape.hidden, shape.intermediate, hidden, hidden)

    def _norm(self, weight: str) -> None:
        epsilon = constant(F32, self.shape.epsilon)
        more = (self.layer[weight], epsilon)
        self._quantise(self.called.norm, self.step["hidden"], self.shape.hidden, *more)

    def _quantise(self, kernel: ir.Function, source: Value, width: int, *more: Value) -> None:
        kind, stride, one = constant(I32, KIND_F32), constant(I64, 0), constant(I64, 1)
        arguments = [source, kind, stride, constant(I64, width), one, self.step["records"], *more]
        self.e.call(kernel, arguments)

    def _product(
        self, matrix: str, bits: int, rows: int, width: int, out: Value, addend: Value
    ) -> None:
        numbers = [constant(I64, number) for number in (KIND_F32, groups_of(width), rows, 1, 0)]
        arguments = [self.layer[matrix], self.step["records"], out, addend, *numbers]
        self._share(self.called.products[bits], arguments, blocks_of(rows))

    def _attention(self) -> None:
        e, heads = self.e, self.shape.attention
        step, layer = self.step, self.layer
        position, stride = step["position"], layer["head_stride"]
        item = heads.head_dim * KIND_BYTES[heads.cache_kind]
        new = [e.at(layer[which], position, item) for which in ("keys", "values")]
        norms = [layer["query_norm"], layer["key_norm"]]
        angles = [step["cosines"], step["sines"]]
        e.call(self.called.rotate, [step["wide"], *angles, *norms, *new, stride])
        # A window of w looks at w tokens, the new one among them.
        end = e.add(position, constant(I64, 1))
        start = e.sub(end, layer["window"])
        start = e.select(e.icmp_signed(">", start, constant(I64, 0)), start, constant(I64, 0))
        given = {
            "queries": step["wide"],
            "keys": e.at(layer["keys"], start, item),
            "values": e.at(layer["values"], start, item),
            "head_stride": stride,
            "length": e.sub(end, start),
            "scores": step["scores"],
            "scores_stride": step["scores_stride"],
            "out": step["attended"],
        }
        arguments = [given[field] for field in ATTEND_FIELDS]
        self._share(self.called.attend, arguments, heads.kv_heads)

    def _share(self, piece: ir.Function, arguments: Sequence[Value], blocks: int) -> None:
        """Call the piece for all blocks: alone, or together with the pool."""
        e = self.e
        memory = e.stack(I64, len(arguments))
        for index, argument in enumerate(arguments):
            e.put(argument, e.at(memory, 8 * index))
        job, shares, count = self.step["job"], self.step["shares"], constant(I64, blocks)
        is_alone = e.icmp_unsigned("==", e.ptrtoint(job, I64), constant(I64, 0))
        with e.if_else(is_alone) as (alone, together):
            with alone:
                e.call(piece, [memory, constant(I64, 0), count])
            with together:
                step = e.sdiv(count, shares)
                step = e.add(step, e.zext(e.icmp_signed("==", step, constant(I64, 0)), I64))
                e.call(self.called.run, [job, piece, memory, count, step])
