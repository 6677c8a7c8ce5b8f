"""The kernel of decoding: one token through decoder layers, in one call.

    hidden += after(output(attend(rope(qkv(before(hidden))))))
    hidden += after(down(gated(gate_up(before(hidden)))))

for each layer, which may lack one of these, or with a gated delta net, a state space or a convolution in place of attention; hidden states f32 and updated in place; with weights of 16 bits they are rounded to these
after each layer, as they are where a stage ends. `before` and `after` are norms or nothing; what
is added may be multiplied instead. In place of the second line there may be a MoE,

    hidden += Σ factor down(gated(gate_up(before(hidden))))

of those that its router chooses, in their order, and then of the one that all tokens go through. Torch and the kernels for many tokens compute the same
sums in the same order (`blocks.py`, `mlp.py`), so that a token gets the same bits from either. One kernel is compiled for each shape. What
differs between layers of one shape is passed as data. What all layers share in a step is in one record, what a layer has of its own in
another. With several threads, they share products and attention.
"""

from dataclasses import dataclass, replace

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.attention_kernel import Attend, emit_attend, emit_gates
from potluck.engine.kernels.attending.index_kernel import (
    emit_choose_tokens,
    emit_copy_rows,
    emit_index_keys,
)
from potluck.engine.kernels.attending.latent_kernel import emit_latent_rows
from potluck.engine.kernels.attending.rope_kernel import RopeAndCache, emit_rope_and_cache
from potluck.engine.kernels.decoding.forms import FloatForm, Form, PackedForm
from potluck.engine.kernels.decoding.latent_layer import LatentCalls, LatentShape
from potluck.engine.kernels.decoding.layer_records import Expert, Layer, Step
from potluck.engine.kernels.decoding.layer_shape import (
    FLOAT_KINDS,
    LayerShape,
    MixerShape,
    MlpShape,
    NarrowShape,
    SpaceShape,
)
from potluck.engine.kernels.mixtures.moe_kernel import emit_choose, is_chosen
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import emit_row
from potluck.engine.kernels.states.convolution_kernel import (
    call_short_convolution,
    emit_short_convolution,
)
from potluck.engine.kernels.states.delta_kernel import call_delta_net, emit_delta_net
from potluck.engine.kernels.states.mamba_kernel import call_mamba, emit_mamba
from potluck.engine.kernels.threads_kernel import OnThreads, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I64,
    KIND_F32,
    NULL,
    POINTER,
    VOID,
    Operand,
    constant,
)
from potluck.engine.kernels.writing.kinds import from_f32, to_f32
from potluck.engine.kernels.writing.memory import Pointer
from potluck.model.families.facts import Activation, gate_up_rows
from potluck.model.formats import PACKED_FORMATS, WeightFormat
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.mixing.mamba import MambaHeads
from potluck.model.mixing.short_convolution import ConvolutionSizes
from potluck.model.routing import Routing

# A `Step`, an array of `Layer`, its length.
DECODE = ir.FunctionType(VOID, [POINTER, POINTER, I64])


def emit_decode(module: ir.Module, name: str, path: Path, shape: LayerShape) -> ir.Function:
    """Write the kernel that takes one token through some layers."""
    run = emit_run(module, f"{name}_run", path)
    called = _Called(
        mix=_emit_mixer(module, name, path, shape, run),
        scale=emit_row(module, f"{name}_scale", path, "scaled", KIND_F32),
        add=emit_row(module, f"{name}_add", path, "scaled", "sum"),
        add_normed=emit_row(module, f"{name}_add_normed", path, "normed", "sum"),
        norm=shape.beside and emit_row(module, f"{name}_norm", path, "normed", KIND_F32),
        choose=shape.routing and emit_choose(module, f"{name}_choose", path, shape.routing),
    )
    e = Emitter(ir.Function(module, DECODE, name), path)
    step, layers, count = e.arguments
    given = Step.load(step)
    threads = OnThreads(e, run, given.job, given.shares)
    forms = _forms(name, given.records, threads)
    router = FloatForm(name=name, memory=given.normed, threads=threads, kind=KIND_F32)
    with e.loop(0, count) as index:
        layer = layers.of(Layer)[index]
        _Layer(
            e=e, shape=shape, called=called, forms=forms, router=router, step=given, layer=layer
        ).emit()
    return e.end()


def _emit_mixer(
    module: ir.Module, name: str, path: Path, shape: LayerShape, run: ir.Function
) -> tuple[ir.Function, ...]:
    """Write the functions that mix a token with those before it, in the order in which they are called."""
    mixer = shape.mixer
    if mixer is None:
        return ()
    if isinstance(mixer, DeltaHeads):
        return (emit_delta_net(module, f"{name}_delta", path, mixer),)
    if isinstance(mixer, MambaHeads):
        return emit_mamba(module, f"{name}_mamba", path, mixer)
    if isinstance(mixer, ConvolutionSizes):
        return (emit_short_convolution(module, f"{name}_convolution", path, mixer),)
    attend = emit_attend(module, f"{name}_attend", path, mixer, run)
    if (space := shape.space) is not None:
        rope = emit_rope_and_cache(module, f"{name}_rope", path, mixer)
        return rope, attend, *emit_mamba(module, f"{name}_mamba", path, space.heads)
    if (latent := shape.latent) is None:
        return emit_rope_and_cache(module, f"{name}_rope", path, mixer), attend
    rows, index = emit_latent_rows(module, f"{name}_rows", path, latent.heads), latent.index
    if index is None and latent.follows is not None:
        return (
            rows,
            attend,
            emit_copy_rows(module, f"{name}_copy_rows", path, latent.heads.attention),
        )
    if index is None:
        return rows, attend
    keys = emit_index_keys(module, f"{name}_index", path, index)
    return rows, attend, keys, emit_choose_tokens(module, f"{name}_choose_tokens", path, index, run)


def _forms(name: str, memory: Pointer, threads: OnThreads) -> dict[WeightFormat, Form]:
    """Return the form of the matrices of each format."""
    forms: dict[WeightFormat, Form] = {
        held: PackedForm(name=name, memory=memory, threads=threads, weight_format=held)
        for held in PACKED_FORMATS
    }
    for held, kind in FLOAT_KINDS.items():
        forms[held] = FloatForm(name=name, memory=memory, threads=threads, kind=kind)
    return forms


@dataclass(frozen=True, kw_only=True)
class _Called:
    """The functions that a layer is made of."""

    mix: tuple[ir.Function, ...]
    scale: ir.Function
    add: ir.Function
    add_normed: ir.Function
    norm: ir.Function | None
    choose: ir.Function | None


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Emits one layer."""

    e: Emitter
    shape: LayerShape
    called: _Called
    forms: dict[WeightFormat, Form]
    router: FloatForm
    step: Step
    layer: Layer

    def emit(self) -> None:
        shape = self.shape
        if shape.space is not None:
            self._mix_both(shape.attention, shape.space)
        elif shape.mixer is not None:
            self._mix(shape.mixer)
        if shape.has_feed_forward:
            self._feed_forward()
        if shape.has_scale:
            self._scale()
        if shape.rounds_to is not None:
            self._round(shape.rounds_to)

    def _mix(self, mixer: MixerShape) -> None:
        shape = self.shape
        mixed, form = shape.attended, self._form(shape.qkv_format)
        if isinstance(mixer, DeltaHeads):
            self._product(form, "qkv", self._rates(form, mixer), shape.qkv_rows)
            self._delta_net(mixer)
        else:
            self._product(form, "qkv", self._first(form), shape.qkv_rows)
            if isinstance(mixer, MambaHeads):
                self._mamba(mixer)
            elif isinstance(mixer, ConvolutionSizes):
                self._convolution(mixer)
            elif shape.latent is None:
                self._attention(mixer)
            else:
                self._latent(shape.latent)
        form = self._form(shape.output_format)
        inputs = form.as_is(self.step.attended, mixed)
        self._add(form, "output", inputs, mixed, "after_attention", sums=shape.sums_mixer)

    def _mix_both(self, heads: Heads, space: SpaceShape) -> None:
        """Add attention and a state space, which read the same, to the hidden states."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        width, size = shape.hidden, space.heads.values_size
        normed = self._normed(layer.before_attention)
        form = self._form(shape.qkv_format)
        self._product(form, "qkv", form.as_is(normed, width), shape.qkv_rows)
        self._attention(heads)
        form = self._form(shape.output_format)
        inputs = form.as_is(step.attended, shape.attended)
        bias = layer.output_bias
        form.multiply(layer.output, inputs, step.added, bias, width, shape.attended)
        form = self.forms[space.input_format]
        inputs = form.as_is(normed, width)
        form.multiply(layer.space_input, inputs, step.wide, NULL, space.heads.rows, width)
        places = {"inputs": step.wide, "out": step.attended}
        call_mamba(self.router.threads, self.called.mix[2:], space.heads, layer, **places)
        form = self.forms[space.output_format]
        inputs = form.as_is(step.attended, size)
        form.multiply(layer.space_output, inputs, step.wide, NULL, width, size)
        one = constant(F32, 1.0)
        e.call(self.called.add, [step.wide, e.index(width), step.added, NULL, one])
        self._finish(step.added, "after_attention")

    def _feed_forward(self) -> None:
        shape = self.shape
        if shape.routing is None:
            self._mlp()
        elif shape.beside is None:
            self._experts(shape.routing)
            self._sum(self.step.total, shape.hidden, sums=shape.sums_feed_forward)
            self._finish(self.step.total, "after_mlp")
        else:
            self._parallel(shape.routing, shape.beside)

    def _form(self, held: WeightFormat | None) -> Form:
        assert held is not None
        return self.forms[held]

    def _round(self, kind: int) -> None:
        hidden = self.step.hidden
        for span in self.e.spans(self.shape.hidden, LANES):
            hidden[span] = to_f32(from_f32(hidden[span], kind), kind)

    def _scale(self) -> None:
        hidden, factor = self.step.hidden, self.layer.scale[0]
        for span in self.e.spans(self.shape.hidden, LANES):
            hidden[span] = hidden[span] * factor

    def _mlp(self) -> None:
        shape = self.shape
        form = self._form(shape.gate_up_format)
        if shape.is_side_by_side:
            inputs = form.as_is(self.step.normed, shape.hidden)
        else:
            inputs = self._read(form, "before_mlp")
        rows = gate_up_rows(shape.activation, shape.intermediate)
        self._product(form, "gate_up", inputs, rows)
        form = self._form(shape.down_format)
        learned = self.layer.learned
        inputs = form.gated(self.step.wide, shape.intermediate, shape.activation, learned)
        sums = shape.sums_feed_forward
        self._add(form, "down", inputs, shape.intermediate, "after_mlp", sums=sums)

    def _experts(self, routing: Routing) -> None:
        """Write what the experts make of the hidden states to `total`."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        width, is_beside = shape.hidden, shape.beside is not None
        normed = step.normed
        if not shape.is_side_by_side:
            normed = self._normed(layer.router_norm if is_beside else layer.before_mlp)
        addend = layer.router_bias
        self.router.multiply(layer.router, normed, step.routed, addend, routing.rows, width)
        e.call(self.called.choose, [step.routed, layer.choice_bias, step.factors])
        if is_beside:
            normed = self.router.normed(step.hidden, width, layer.before_moe, shape.epsilon)
        form, read = self._form(shape.gate_up_format), normed
        if shape.narrow is not None:
            read = self._narrow(shape.narrow, normed)
        few = shape.expert_width
        inputs = read if routing.scales_input else form.as_is(read, few)
        # Zeros, made by a product: LLVM would turn a loop that writes them into a call of a C library.
        zero, one = constant(F32, 0.0), constant(F32, 1.0)
        e.call(self.called.scale, [read, e.index(few), step.total, NULL, zero])
        with e.loop(0, routing.count) as index:
            factor = step.factors[index]
            with e.if_then(is_chosen(e, factor)):
                if shape.has_expert_scales:
                    factor = factor * layer.expert_scales[index]
                if routing.scales_input:
                    e.call(self.called.scale, [read, e.index(few), step.added, NULL, factor])
                    scaled = form.as_is(step.added, few)
                    self._expert(layer.experts[index], shape.mlp, scaled, one, few)
                else:
                    self._expert(layer.experts[index], shape.mlp, inputs, factor, few)
        if shape.narrow is not None:
            self._widen(shape.narrow)
        if shape.shared is not None:
            is_changed = routing.scales_input or shape.narrow is not None
            if is_changed or shape.shared.gate_up_format != shape.gate_up_format:
                inputs = self.forms[shape.shared.gate_up_format].as_is(normed, width)
            last = e.index(routing.count)
            factor = constant(F32, routing.shared_scale)
            if routing.has_shared_gate:
                factor = step.factors[last]
            activation = shape.shared_activation
            self._expert(layer.experts[last], shape.shared, inputs, factor, width, activation)

    def _narrow(self, narrow: NarrowShape, normed: Pointer) -> Pointer:
        """Write the few numbers that experts read of the hidden states."""
        form, width, few = self.forms[narrow.first_format], self.shape.hidden, self.step.narrow
        inputs = form.as_is(normed, width)
        form.multiply(self.layer.narrow_first, inputs, few, NULL, narrow.size, width)
        return few

    def _widen(self, narrow: NarrowShape) -> None:
        """Make hidden states of the experts' total, in its place."""
        form, step, width = self.forms[narrow.last_format], self.step, self.shape.hidden
        inputs = form.as_is(step.total, narrow.size)
        form.multiply(self.layer.narrow_last, inputs, step.added, NULL, width, narrow.size)
        copied = [step.added, self.e.index(width), step.total, NULL, constant(F32, 1.0)]
        self.e.call(self.called.scale, copied)

    def _expert(
        self,
        expert: Expert,
        mlp: MlpShape,
        inputs: Pointer,
        factor: Operand,
        width: int,
        activation: Activation | None = None,
    ) -> None:
        """Add factor x expert, of so many numbers, to the total; the input stays as it is."""
        e, step = self.e, self.step
        self._gated(expert, mlp, inputs, width, activation)
        e.call(self.called.add, [step.added, e.index(width), step.total, NULL, factor])

    def _parallel(self, routing: Routing, mlp: MlpShape) -> None:
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        size, epsilon = e.index(shape.hidden), constant(F32, shape.epsilon)
        form = self.forms[mlp.gate_up_format]
        inputs = form.normed(step.hidden, shape.hidden, layer.before_mlp, shape.epsilon)
        self._gated(layer.experts[e.index(shape.last_expert)], mlp, inputs, shape.hidden)
        assert self.called.norm is not None
        norm = [layer.after_dense, epsilon]
        if shape.sums_feed_forward:  # both in one exchange, and so before the norms of both
            e.call(self.called.scale, [step.added, size, step.beside, NULL, constant(F32, 1.0)])
            self._experts(routing)
            self._sum(step.total, 2 * shape.hidden, sums=True)  # `beside` follows `total`
            e.call(self.called.norm, [step.beside, size, step.beside, *norm])
        else:
            e.call(self.called.norm, [step.added, size, step.beside, *norm])
            self._experts(routing)
        e.call(self.called.add_normed, [step.total, size, step.beside, layer.after_moe, epsilon])
        self._finish(step.beside, "after_mlp")

    def _gated(
        self,
        expert: Expert,
        mlp: MlpShape,
        inputs: Pointer,
        width: int,
        activation: Activation | None = None,
    ) -> None:
        """Write what an expert makes of the inputs, `width` of them, which stay as they are, to `added`."""
        step, size, activation = self.step, mlp.intermediate, activation or self.shape.activation
        last = replace(self.forms[mlp.down_format], memory=step.gated)
        form = self.forms[mlp.gate_up_format]
        rows = gate_up_rows(activation, size)
        form.multiply(expert.gate_up, inputs, step.wide, expert.gate_up_bias, rows, width)
        gated = last.gated(step.wide, size, activation)
        last.multiply(expert.down, gated, step.added, expert.down_bias, width, size)

    def _first(self, form: Form) -> Pointer:
        """Write the input of attention; the MLP beside it reads what is normed, which stays."""
        if self.shape.is_side_by_side:
            return form.as_is(self._normed(self.layer.before_attention), self.shape.hidden)
        return self._read(form, "before_attention")

    def _normed(self, norm: Pointer) -> Pointer:
        """Write the normed hidden states in f32, to `normed`."""
        shape = self.shape
        hidden = self.step.hidden
        return self.router.normed(hidden, shape.hidden, norm, shape.epsilon, shape.norm_kind)

    def _read(self, form: Form, norm: str) -> Pointer:
        """Write the hidden states, normed if there are norms before, as the input of a product."""
        hidden, width = self.step.hidden, self.shape.hidden
        if self.shape.has_norms_before:
            shape = self.shape
            return form.normed(hidden, width, self.layer[norm], shape.epsilon, shape.norm_kind)
        return form.as_is(hidden, width)

    def _product(self, form: Form, matrix: str, inputs: Pointer, rows: int) -> None:
        """Write a product with the hidden states, plus its bias, to `wide`."""
        wide, bias = self.step.wide, self.layer[f"{matrix}_bias"]
        form.multiply(self.layer[matrix], inputs, wide, bias, rows, self.shape.hidden)

    def _sum(self, numbers: Pointer, count: int, *, sums: bool) -> None:
        """Replace so many numbers by their sums over the ranks of the group, if there are to be sums."""
        e, step = self.e, self.step
        if sums:
            with e.if_then(e.ptrtoint(step.sum, I64).differs(0)):
                e.call(step.sum, [step.sum_argument, numbers, e.index(count)])

    def _add(
        self, form: Form, matrix: str, inputs: Pointer, width: int, norm: str, *, sums: bool
    ) -> None:
        """Add the product of the matrix and the input to the hidden states."""
        e, shape, called = self.e, self.shape, self.called
        hidden, added = self.step.hidden, self.step.wide
        weights, bias = self.layer[matrix], self.layer[f"{matrix}_bias"]
        size = e.index(shape.hidden)
        if shape.adds_as_is and not sums:
            with e.if_else(bias.is_set) as (biased, plain):
                with biased:
                    form.multiply(weights, inputs, added, bias, shape.hidden, width)
                    e.call(called.add, [added, size, hidden, NULL, constant(F32, 1.0)])
                with plain:
                    form.multiply(weights, inputs, hidden, hidden, shape.hidden, width)
            return
        form.multiply(weights, inputs, added, bias, shape.hidden, width)
        self._sum(added, shape.hidden, sums=sums)
        self._finish(added, norm)

    def _finish(self, added: Pointer, norm: str) -> None:
        """Add what attention or a feed-forward has made to the hidden states."""
        e, shape, hidden = self.e, self.shape, self.step.hidden
        size = e.index(shape.hidden)
        if shape.has_norms_after:
            own = shape.after_epsilon
            epsilon = constant(F32, shape.epsilon if own is None else own)
            e.call(self.called.add_normed, [added, size, hidden, self.layer[norm], epsilon])
        else:
            e.call(self.called.add, [added, size, hidden, NULL, constant(F32, shape.multiplier)])

    def _rates(self, form: Form, heads: DeltaHeads) -> Pointer:
        """Write what a delta net's rates are computed of, and the input of its first product."""
        step, layer, width = self.step, self.layer, self.shape.hidden
        normed = self.router.normed(step.hidden, width, layer.before_attention, self.shape.epsilon)
        rows = heads.value_heads + heads.decays_step
        self.router.multiply(layer.rates, normed, step.rates, NULL, rows, width)
        if heads.has_channel_decays:
            size, decays = heads.key_size, step.rates + heads.value_heads
            few = self._few(decays, size)
            self.router.multiply(layer.decay_up, few, decays, NULL, heads.decays_size, size)
        return form.as_is(normed, width)

    def _few(self, numbers: Pointer, count: int) -> Pointer:
        """Copy few numbers, in place of which others are written that are made of them."""
        few = self.step.few
        for span in self.e.spans(count, LANES):
            few[span] = numbers[span]
        return few

    def _delta_net(self, heads: DeltaHeads) -> None:
        (kernel,), step = self.called.mix, self.step
        if (held := self.shape.gates_format) is not None:
            form, size, gates = self.forms[held], heads.value_size, step.wide + heads.channels
            few = form.as_is(self._few(gates, size), size)
            form.multiply(self.layer.gates, few, gates, NULL, heads.values_size, size)
        places = {"inputs": step.wide, "rates": step.rates, "out": step.attended}
        call_delta_net(self.router.threads, kernel, heads, self.layer, **places)

    def _mamba(self, heads: MambaHeads) -> None:
        places = {"inputs": self.step.wide, "out": self.step.attended}
        call_mamba(self.router.threads, self.called.mix, heads, self.layer, **places)

    def _convolution(self, sizes: ConvolutionSizes) -> None:
        (job,), places = self.called.mix, {"inputs": self.step.wide, "out": self.step.attended}
        call_short_convolution(self.router.threads, job, sizes, self.layer, **places)

    def _latent(self, latent: LatentShape) -> None:
        rows, attend, *index = self.called.mix
        normed, width = self.step.normed, self.shape.hidden
        if latent.index is not None:
            norm = self.layer.before_attention
            normed = self.router.normed(self.step.hidden, width, norm, self.shape.epsilon)
        calls = LatentCalls(
            e=self.e,
            shape=latent,
            forms=self.forms,
            router=self.router,
            rows=rows,
            attend=attend,
            index=tuple(index),
            step=self.step,
            layer=self.layer,
            normed=(normed, width),
        )
        calls.emit()

    def _attention(self, heads: Heads) -> None:
        rope_and_cache, attend = self.called.mix[:2]
        e, step, layer = self.e, self.step, self.layer
        angles = step.angles[layer.rope]
        rope = RopeAndCache.store(
            e,
            qkv=step.wide,
            cosines=angles.cosines,
            sines=angles.sines,
            query_factors=angles.query_factors,
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            value_norm=layer.value_norm,
            keys=layer.keys,
            values=layer.values,
            head_stride=layer.head_stride,
            position=step.position,
        )
        e.call(rope_and_cache, [rope, e.index(0), e.index(1)])
        # As if the text began with the token's chunk.
        inside = step.position % layer.chunk
        start = step.position - inside
        arguments = Attend.store(
            e,
            queries=step.wide,
            keys=layer.keys.skip(start, heads.cached_bytes),
            values=layer.values.skip(start, heads.cached_bytes),
            head_stride=layer.head_stride,
            own_from=layer.own_from,
            shared_keys=layer.shared_keys,
            shared_values=layer.shared_values,
            shared_stride=layer.shared_stride,
            position=inside,
            window=layer.window,
            sinks=layer.sinks,
            parts=step.parts,
            out=step.attended,
            job=step.job,
            shares=step.shares,
        )
        e.call(attend, [arguments])
        if heads.has_gates or heads.gate_rows:
            emit_gates(e, heads, step.wide, step.attended)
