"""The kernel of decoding: one token through decoder layers, in one call.

    hidden += after(output(attend(rotate(qkv(before(hidden))))))
    hidden += after(down(gated(gate_up(before(hidden)))))

for each layer, hidden states f32 and updated in place. `before` and `after` are norms or nothing; what
is added may be multiplied instead. The kernel is written for a shape; what layers of one shape differ
in is data. What all layers share in a step stands in one record, what a layer has of its own in
another; both are 8 bytes a field, in the order below. With a pool, products and attention are shared
among its threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import ATTEND_FIELDS, Heads, emit_attend
from potluck.engine.kernels.emit import (
    F32,
    I32,
    I64,
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
from potluck.engine.kernels.layout import blocks_of
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import emit_run, emit_shared
from potluck.engine.kernels.product_kernel import emit_product_piece, product_arguments
from potluck.engine.kernels.residual_kernel import emit_add, emit_add_normed
from potluck.engine.kernels.rotate_kernel import emit_rotate
from potluck.model.config import Activation
from potluck.model.families import NormPlacement

# `angles` are pairs of pointers, to cosines and to sines; those of the first pair are null.
STEP_FIELDS = (
    "hidden", "position", "angles", "records", "wide", "attended", "scores", "scores_stride", "sums",
    "job", "shares",
)  # fmt: skip
# Norms that the shape does not have are never read, biases that a layer does not have are null.
# `head_stride` is in bytes, `rope` is the number of a pair of angles.
LAYER_FIELDS = (
    "before_attention", "qkv", "qkv_bias", "query_norm", "key_norm", "output", "output_bias",
    "after_attention", "before_mlp", "gate_up", "gate_up_bias", "down", "down_bias", "after_mlp",
    "keys", "values", "head_stride", "window", "rope",
)  # fmt: skip
_NUMBERS = {"position", "scores_stride", "shares", "head_stride", "window", "rope"}
_ANGLES_BYTES = 16

# step, the layers' records one after the other, their number
DECODE = ir.FunctionType(VOID, [POINTER, POINTER, I64])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What a decoding kernel is written for."""

    hidden: int
    intermediate: int  # 0: attention alone, where what follows are experts
    attention: Heads
    norms: NormPlacement
    epsilon: float  # of the norms before and after attention and MLP
    multiplier: float  # of what is added to the hidden states; 1 with norms after
    activation: Activation
    qkv_bits: int
    output_bits: int
    gate_up_bits: int
    down_bits: int

    def __post_init__(self) -> None:
        assert self.multiplier == 1.0 or not self.has_norms_after

    @property
    def has_norms_before(self) -> bool:
        return self.norms != "after"

    @property
    def has_norms_after(self) -> bool:
        return self.norms != "before"

    @property
    def adds_as_is(self) -> bool:
        """What attention and MLP give is added as it is: by the product itself."""
        return not self.has_norms_after and self.multiplier == 1.0

    @property
    def qkv_rows(self) -> int:
        return (self.attention.heads + 2 * self.attention.kv_heads) * self.attention.head_dim

    @property
    def attended(self) -> int:
        return self.attention.heads * self.attention.head_dim


def emit_decode(module: ir.Module, name: str, path: Path, shape: LayerShape) -> ir.Function:
    """One token through some layers."""
    bits = {shape.qkv_bits, shape.output_bits}
    if shape.intermediate:
        bits |= {shape.gate_up_bits, shape.down_bits}
    pieces = {
        number: emit_product_piece(module, f"{name}_product{number}", path, number, tiles=(1,))
        for number in sorted(bits)
    }
    called = _Called(
        products=pieces,
        norm=emit_norm_quantise(module, f"{name}_norm", path),
        quantise=emit_quantise(module, f"{name}_quantise", path),
        gated=emit_gated_quantise(module, f"{name}_gated", path, shape.activation),
        rotate=emit_rotate(module, f"{name}_rotate", path, shape.attention),
        attend=emit_attend(module, f"{name}_attend", path, shape.attention),
        add=emit_add(module, f"{name}_add", path),
        add_normed=emit_add_normed(module, f"{name}_add_normed", path),
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
    add: ir.Function
    add_normed: ir.Function
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
        shape = self.shape
        self._read("before_attention")
        self._product("qkv", shape.qkv_bits, shape.qkv_rows, shape.hidden)
        self._attention()
        self._quantise(self.called.quantise, self.step["attended"], shape.attended)
        self._add("output", shape.output_bits, shape.attended, "after_attention")
        if not shape.intermediate:
            return
        self._read("before_mlp")
        self._product("gate_up", shape.gate_up_bits, 2 * shape.intermediate, shape.hidden)
        self._quantise(self.called.gated, self.step["wide"], shape.intermediate)
        self._add("down", shape.down_bits, shape.intermediate, "after_mlp")

    def _read(self, norm: str) -> None:
        """Quantise the hidden states, normed if there are norms before."""
        hidden, width = self.step["hidden"], self.shape.hidden
        if self.shape.has_norms_before:
            epsilon = constant(F32, self.shape.epsilon)
            self._quantise(self.called.norm, hidden, width, self.layer[norm], epsilon)
        else:
            self._quantise(self.called.quantise, hidden, width)

    def _add(self, matrix: str, bits: int, width: int, norm: str) -> None:
        """Add to the hidden states what the matrix makes of what was quantised."""
        e, shape, called = self.e, self.shape, self.called
        hidden, added, bias = self.step["hidden"], self.step["wide"], self.layer[f"{matrix}_bias"]
        size, one = constant(I64, shape.hidden), constant(F32, 1.0)
        if shape.adds_as_is:
            with e.if_then(e.icmp_unsigned("!=", e.ptrtoint(bias, I64), constant(I64, 0))):
                e.call(called.add, [hidden, bias, size, one])
            self._multiply(matrix, bits, shape.hidden, width, hidden, hidden)
            return
        self._multiply(matrix, bits, shape.hidden, width, added, bias)
        if shape.has_norms_after:
            more = [self.layer[norm], constant(F32, shape.epsilon)]
            e.call(called.add_normed, [hidden, added, size, *more])
        else:
            e.call(called.add, [hidden, added, size, constant(F32, shape.multiplier)])

    def _quantise(self, kernel: ir.Function, source: Value, width: int, *more: Value) -> None:
        kind, stride, one = constant(I32, KIND_F32), constant(I64, 0), constant(I64, 1)
        arguments = [source, kind, stride, constant(I64, width), one, self.step["records"], *more]
        self.e.call(kernel, arguments)

    def _product(self, matrix: str, bits: int, rows: int, width: int) -> None:
        """Into the wide memory, with the bias."""
        self._multiply(matrix, bits, rows, width, self.step["wide"], self.layer[f"{matrix}_bias"])

    def _multiply(
        self, matrix: str, bits: int, rows: int, width: int, out: Value, addend: Value
    ) -> None:
        arguments = product_arguments(
            self.layer[matrix], self.step["records"], out, addend, rows, width
        )
        self._share(self.called.products[bits], arguments, blocks_of(rows))

    def _attention(self) -> None:
        e, heads = self.e, self.shape.attention
        step, layer = self.step, self.layer
        position, stride, item = step["position"], layer["head_stride"], heads.cached_bytes
        pair = e.at(step["angles"], layer["rope"], _ANGLES_BYTES)
        angles = [e.fetch(e.at(pair, offset), POINTER) for offset in (0, _ANGLES_BYTES // 2)]
        norms = [layer["query_norm"], layer["key_norm"]]
        new = [e.at(layer[which], position, item) for which in ("keys", "values")]
        one = constant(I64, 1)
        e.call(self.called.rotate, [step["wide"], one, *angles, *norms, *new, stride])
        # A window of w looks at w tokens, the new one among them.
        end = e.add(position, one)
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
            "sums": step["sums"],
            "out": step["attended"],
        }
        arguments = [given[field] for field in ATTEND_FIELDS]
        self._share(self.called.attend, arguments, heads.kv_heads)

    def _share(self, piece: ir.Function, arguments: Sequence[Value], blocks: int) -> None:
        pool = (self.called.run, self.step["job"], self.step["shares"])
        emit_shared(self.e, pool, piece, arguments, blocks)
