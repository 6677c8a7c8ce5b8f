"""What a decoding kernel calls for the mixer of a layer."""

from dataclasses import dataclass

from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.attention_kernel import Attend, emit_gates
from potluck.engine.kernels.attending.rope_kernel import RopeAndCache, emit_cached
from potluck.engine.kernels.decoding.block_calls import BlockCalls, BlockShape
from potluck.engine.kernels.decoding.forms import Form
from potluck.engine.kernels.decoding.latent_layer import LatentCalls, LatentShape
from potluck.engine.kernels.decoding.layer_parts import LayerParts
from potluck.engine.kernels.decoding.layer_shape import MixerShape, SpaceShape
from potluck.engine.kernels.decoding.pooled_calls import PooledCalls, PooledShape
from potluck.engine.kernels.states.convolution_kernel import call_short_convolution
from potluck.engine.kernels.states.delta_kernel import call_delta_net
from potluck.engine.kernels.states.mamba_kernel import call_mamba
from potluck.engine.kernels.writing.ir_types import F32, NULL, Operand, constant
from potluck.engine.kernels.writing.memory import Pointer
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.mixing.mamba import MambaHeads
from potluck.model.mixing.short_convolution import ConvolutionSizes


@dataclass(frozen=True, kw_only=True)
class MixerCalls(LayerParts):
    """Emits the mixer of one layer."""

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
            elif shape.pooled is not None:
                self._pooled(shape.pooled)
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

    def _first(self, form: Form) -> Pointer:
        """Write the input of attention; the MLP beside it reads what is normed, which stays."""
        if self.shape.is_side_by_side:
            return form.as_is(self._normed(self.layer.before_attention), self.shape.hidden)
        return self._read(form, "before_attention")

    def _rates(self, form: Form, heads: DeltaHeads) -> Pointer:
        """Write what a delta net's rates are computed of, and the input of its first product."""
        step, layer, width = self.step, self.layer, self.shape.hidden
        normed = self.router.normed(self._hidden, width, layer.before_attention, self.shape.epsilon)
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
        if latent.has_indexer:
            norm = self.layer.before_attention
            normed = self.router.normed(self._hidden, width, norm, self.shape.epsilon)
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

    def _pooled(self, pooled: PooledShape) -> None:
        rows, attend, copy, *choose = self.called.mix
        norm, width = self.layer.before_attention, self.shape.hidden
        calls = PooledCalls(
            e=self.e,
            shape=pooled,
            forms=self.forms,
            router=self.router,
            rows=rows,
            attend=attend,
            copy=copy,
            choose=choose[0] if choose else None,
            step=self.step,
            layer=self.layer,
            normed=(self.router.normed(self._hidden, width, norm, self.shape.epsilon), width),
        )
        calls.emit()

    def _give(self, heads: Heads) -> None:
        """Let the keys and values of the token go along as they are cached, if later layers take them."""
        e, step, layer = self.e, self.step, self.layer
        with e.if_then(layer.gives_at.differs(0)):
            out, place = step.hidden + layer.gives_at, (step.position, layer.head_stride)
            emit_cached(e, heads, layer.keys, *place, out)
            emit_cached(e, heads, layer.values, *place, out + heads.kv_size)

    def _seen(self, heads: Heads) -> dict[str, Operand]:
        """What attention goes through: where the cache is, and which position in it the token has."""
        layer, names = self.layer, ("keys", "values", "head_stride", "own_from")
        cached = {name: layer[name] for name in names}
        shared = ("shared_keys", "shared_values", "shared_stride")
        cached |= {name: layer[name] for name in shared}
        if self.shape.blocks is not None:
            return self._blocks(self.shape.blocks).see(cached)
        # As if the text began with the token's chunk.
        inside = self.step.position % layer.chunk
        start = self.step.position - inside
        for name in ("keys", "values"):
            cached[name] = layer[name].skip(start, heads.cached_bytes)
        return {**cached, "position": inside}

    def _blocks(self, blocks: BlockShape) -> BlockCalls:
        return BlockCalls(
            e=self.e,
            shape=blocks,
            forms=self.forms,
            functions=self.called.mix[2:],
            step=self.step,
            layer=self.layer,
            normed=(self.step.normed, self.shape.hidden),
        )

    def _attention(self, heads: Heads) -> None:
        rope_and_cache, attend = self.called.mix[:2]
        e, step, layer = self.e, self.step, self.layer
        if self.shape.blocks is not None:
            self._normed(layer.before_attention)
            self._blocks(self.shape.blocks).note()
        angles = step.angles[layer.rope]
        rope = RopeAndCache.store(
            e,
            qkv=step.wide,
            taken=step.hidden + layer.takes_at,
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
        if self.shape.carried and not heads.takes:
            self._give(heads)
        arguments = Attend.store(
            e,
            queries=step.wide,
            **self._seen(heads),
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
