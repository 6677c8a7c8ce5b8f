"""The kernel of decoding: one token through decoder layers, in one call.

    hidden += after(output(attend(rotate(qkv(before(hidden))))))
    hidden += after(down(gated(gate_up(before(hidden)))))

for each layer, hidden states f32 and updated in place. `before` and `after` are norms or nothing; what
is added may be multiplied instead. In place of the second line there may be a mixture of experts,

    hidden += Σ factor down(gated(gate_up(before(hidden))))

of those that its router chooses, in their order. The kernel is written for a shape; what layers of one shape differ
in is data. What all layers share in a step stands in one record, what a layer has of its own in
another; both are 8 bytes a field, in the order below. With a pool, products and attention are shared
among its threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import ATTEND_FIELDS, Heads, emit_attend
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.forms import FloatForm, Form, PackedForm
from potluck.engine.kernels.ir_types import (
    F32,
    I64,
    KIND_BF16,
    KIND_F16,
    KIND_F32,
    POINTER,
    VOID,
    Value,
    constant,
)
from potluck.engine.kernels.mixture_kernel import MixtureShape, emit_choose, is_chosen
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import emit_run, emit_shared
from potluck.engine.kernels.residual_kernel import emit_add, emit_add_normed
from potluck.engine.kernels.rotate_kernel import emit_rotate
from potluck.model.families import Activation
from potluck.model.formats import BF16, F16, PACKED_FORMATS, WeightFormat

# `angles` are pairs of pointers, to cosines and to sines; those of the first pair are null.
STEP_FIELDS = (
    "hidden", "position", "angles", "records", "wide", "attended", "scores", "scores_stride", "sums",
    "job", "shares", "normed", "gated", "added", "routed", "factors",
)  # fmt: skip
# Norms that the shape does not have are never read, biases that a layer does not have are null.
# `head_stride` is in bytes, `rope` is the number of a pair of angles, `experts` are `EXPERT_FIELDS` of each.
LAYER_FIELDS = (
    "before_attention", "qkv", "qkv_bias", "query_norm", "key_norm", "output", "output_bias",
    "after_attention", "before_mlp", "gate_up", "gate_up_bias", "down", "down_bias", "after_mlp",
    "keys", "values", "head_stride", "window", "rope", "router", "experts",
)  # fmt: skip
EXPERT_FIELDS = ("gate_up", "down")
_NUMBERS = {"position", "scores_stride", "shares", "head_stride", "window", "rope"}
_ANGLES_BYTES = 16

# step, the layers' records one after the other, their number
DECODE = ir.FunctionType(VOID, [POINTER, POINTER, I64])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What a decoding kernel is written for."""

    hidden: int
    intermediate: int  # of the MLP, or of each expert
    attention: Heads
    has_norms_before: bool  # attention and MLP
    has_norms_after: bool
    epsilon: float  # of the norms before and after attention and MLP
    multiplier: float  # of what is added to the hidden states; 1 with norms after
    activation: Activation
    qkv_format: WeightFormat
    output_format: WeightFormat
    gate_up_format: WeightFormat
    down_format: WeightFormat
    mixture: MixtureShape | None = None

    def __post_init__(self) -> None:
        assert self.multiplier == 1.0 or not self.has_norms_after
        assert self.mixture is None or (self.has_norms_before and self.adds_as_is)

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
    mixture = shape.mixture
    called = _Called(
        rotate=emit_rotate(module, f"{name}_rotate", path, shape.attention),
        attend=emit_attend(module, f"{name}_attend", path, shape.attention),
        add=emit_add(module, f"{name}_add", path),
        add_normed=emit_add_normed(module, f"{name}_add_normed", path),
        run=emit_run(module, f"{name}_run", path),
        choose=None if mixture is None else emit_choose(module, f"{name}_choose", path, mixture),
    )
    function = ir.Function(module, DECODE, name)
    step, layers, count = function.args
    e = Emitter(function, path)
    given = _fields(e, step, STEP_FIELDS)
    with e.loop(0, count) as index:
        own = _fields(e, e.at(layers, index, 8 * len(LAYER_FIELDS)), LAYER_FIELDS)
        forms = _forms(e, name, given["records"])
        router = FloatForm(e=e, name=name, memory=given["normed"], kind=KIND_F32)
        layer = _Layer(
            e=e, shape=shape, called=called, forms=forms, router=router, step=given, layer=own
        )
        layer.emit()
    e.ret_void()
    return function


def _forms(e: Emitter, name: str, memory: Value) -> dict[WeightFormat, Form]:
    """What a layer's matrices of each format are multiplied by."""
    forms: dict[WeightFormat, Form] = {
        held: PackedForm(e=e, name=name, memory=memory, weight_format=held)
        for held in PACKED_FORMATS
    }
    for held, kind in ((BF16, KIND_BF16), (F16, KIND_F16)):
        forms[held] = FloatForm(e=e, name=name, memory=memory, kind=kind)
    return forms


def _fields(e: Emitter, record: Value, names: Sequence[str]) -> dict[str, Value]:
    return {
        name: e.fetch(e.at(record, 8 * index), I64 if name in _NUMBERS else POINTER)
        for index, name in enumerate(names)
    }


@dataclass(frozen=True, kw_only=True)
class _Called:
    """The functions that a layer is made of."""

    rotate: ir.Function
    attend: ir.Function
    add: ir.Function
    add_normed: ir.Function
    run: ir.Function
    choose: ir.Function | None


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """One layer, being written."""

    e: Emitter
    shape: LayerShape
    called: _Called
    forms: dict[WeightFormat, Form]
    router: FloatForm
    step: dict[str, Value]
    layer: dict[str, Value]

    def emit(self) -> None:
        shape, attended = self.shape, self.step["attended"]
        form = self.forms[shape.qkv_format]
        self._product(form, "qkv", self._read(form, "before_attention"), shape.qkv_rows)
        self._attention()
        form = self.forms[shape.output_format]
        inputs = form.as_is(attended, shape.attended)
        self._add(form, "output", inputs, shape.attended, "after_attention")
        if shape.mixture is None:
            self._mlp()
        else:
            self._experts(shape.mixture)

    def _mlp(self) -> None:
        shape = self.shape
        form = self.forms[shape.gate_up_format]
        self._product(form, "gate_up", self._read(form, "before_mlp"), 2 * shape.intermediate)
        form = self.forms[shape.down_format]
        inputs = form.gated(self.step["wide"], shape.intermediate, shape.activation)
        self._add(form, "down", inputs, shape.intermediate, "after_mlp")

    def _experts(self, mixture: MixtureShape) -> None:
        e, shape, step = self.e, self.shape, self.step
        hidden, factors, nothing = step["hidden"], step["factors"], ir.Constant(POINTER, None)
        width, size = shape.hidden, shape.intermediate
        normed = self.router.normed(hidden, width, self.layer["before_mlp"], shape.epsilon)
        router, routed = self.layer["router"], step["routed"]
        self._multiply(self.router, router, normed, routed, nothing, mixture.count, width)
        e.call(self.called.choose, [routed, factors])
        form, last = self.forms[shape.gate_up_format], self.forms[shape.down_format]
        inputs = form.as_is(normed, width)
        last = replace(last, memory=step["gated"])  # every expert reads the same input
        with e.loop(0, mixture.count) as expert:
            factor = e.fetch(e.at(factors, expert, 4), F32)
            with e.if_then(is_chosen(e, factor)):
                record = e.at(self.layer["experts"], expert, 8 * len(EXPERT_FIELDS))
                gate_up, down = (e.fetch(e.at(record, 8 * field), POINTER) for field in range(2))
                self._multiply(form, gate_up, inputs, step["wide"], nothing, 2 * size, width)
                gated = last.gated(step["wide"], size, shape.activation)
                self._multiply(last, down, gated, step["added"], nothing, width, size)
                e.call(self.called.add, [hidden, step["added"], constant(I64, width), factor])

    def _read(self, form: Form, norm: str) -> Value:
        """An input of the hidden states, normed if there are norms before."""
        hidden, width = self.step["hidden"], self.shape.hidden
        if self.shape.has_norms_before:
            return form.normed(hidden, width, self.layer[norm], self.shape.epsilon)
        return form.as_is(hidden, width)

    def _product(self, form: Form, matrix: str, inputs: Value, rows: int) -> None:
        """Of the hidden states, into the wide memory, with the bias."""
        wide, bias = self.step["wide"], self.layer[f"{matrix}_bias"]
        self._multiply(form, self.layer[matrix], inputs, wide, bias, rows, self.shape.hidden)

    def _add(self, form: Form, matrix: str, inputs: Value, width: int, norm: str) -> None:
        """Add to the hidden states what the matrix makes of the input."""
        e, shape, called = self.e, self.shape, self.called
        hidden, added = self.step["hidden"], self.step["wide"]
        weights, bias = self.layer[matrix], self.layer[f"{matrix}_bias"]
        size, one = constant(I64, shape.hidden), constant(F32, 1.0)
        if shape.adds_as_is:
            with e.if_then(e.icmp_unsigned("!=", e.ptrtoint(bias, I64), constant(I64, 0))):
                e.call(called.add, [hidden, bias, size, one])
            self._multiply(form, weights, inputs, hidden, hidden, shape.hidden, width)
            return
        self._multiply(form, weights, inputs, added, bias, shape.hidden, width)
        if shape.has_norms_after:
            more = [self.layer[norm], constant(F32, shape.epsilon)]
            e.call(called.add_normed, [hidden, added, size, *more])
        else:
            e.call(called.add, [hidden, added, size, constant(F32, shape.multiplier)])

    def _multiply(
        self,
        form: Form,
        matrix: Value,
        inputs: Value,
        out: Value,
        addend: Value,
        rows: int,
        width: int,
    ) -> None:
        product = form.product(matrix, inputs, out, addend, rows, width)
        self._share(product.piece, product.arguments, product.blocks)

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
