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

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES
from potluck.engine.kernels.attending.attention_kernel import emit_attend
from potluck.engine.kernels.attending.blocks_kernel import emit_block_keys, emit_choose_blocks
from potluck.engine.kernels.attending.index_kernel import (
    emit_choose_tokens,
    emit_copy_rows,
    emit_index_keys,
)
from potluck.engine.kernels.attending.latent_kernel import emit_latent_rows
from potluck.engine.kernels.attending.pool_rows_kernel import emit_pool_keys
from potluck.engine.kernels.attending.pooled_kernel import emit_pooled_rows, emit_seen_rows
from potluck.engine.kernels.attending.pools_kernel import emit_choose_pools
from potluck.engine.kernels.attending.rope_kernel import emit_rope_and_cache
from potluck.engine.kernels.decoding.feed_forward_calls import FeedForwardCalls
from potluck.engine.kernels.decoding.forms import FloatForm, Form, PackedForm
from potluck.engine.kernels.decoding.input_calls import InputCalls
from potluck.engine.kernels.decoding.layer_parts import Called
from potluck.engine.kernels.decoding.layer_records import Layer, Step
from potluck.engine.kernels.decoding.layer_shape import FLOAT_KINDS, LayerShape
from potluck.engine.kernels.decoding.mixer_calls import MixerCalls
from potluck.engine.kernels.decoding.streams_kernel import emit_shares
from potluck.engine.kernels.mixtures.moe_kernel import emit_choose
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import emit_row
from potluck.engine.kernels.states.convolution_kernel import emit_short_convolution
from potluck.engine.kernels.states.delta_kernel import emit_delta_net
from potluck.engine.kernels.states.mamba_kernel import emit_mamba
from potluck.engine.kernels.threads_kernel import OnThreads, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import I64, KIND_F32, POINTER, VOID
from potluck.engine.kernels.writing.kinds import from_f32, to_f32
from potluck.engine.kernels.writing.memory import Pointer
from potluck.model.formats import PACKED_FORMATS, WeightFormat
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.mixing.mamba import MambaHeads
from potluck.model.mixing.short_convolution import ConvolutionSizes

# A `Step`, an array of `Layer`, its length.
DECODE = ir.FunctionType(VOID, [POINTER, POINTER, I64])


def emit_decode(module: ir.Module, name: str, path: Path, shape: LayerShape) -> ir.Function:
    """Write the kernel that takes one token through some layers."""
    run = emit_run(module, f"{name}_run", path)
    called = Called(
        mix=_emit_mixer(module, name, path, shape, run),
        scale=emit_row(module, f"{name}_scale", path, "scaled", KIND_F32),
        add=emit_row(module, f"{name}_add", path, "scaled", "sum"),
        add_normed=emit_row(module, f"{name}_add_normed", path, "normed", "sum"),
        norm=(shape.beside or shape.inputs)
        and emit_row(module, f"{name}_norm", path, "normed", KIND_F32),
        choose=shape.routing and emit_choose(module, f"{name}_choose", path, shape.routing),
        shares=shape.streams and emit_shares(module, f"{name}_shares", path, shape.streams),
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
    if (pooled := shape.pooled) is not None:
        heads, index = pooled.heads, pooled.heads.index
        choose = (
            ()
            if index is None
            else (emit_choose_pools(module, f"{name}_choose_pools", path, index, run),)
        )
        rows = emit_pooled_rows(module, f"{name}_rows", path, heads)
        return rows, attend, emit_seen_rows(module, f"{name}_seen", path, heads), *choose
    if (blocks := shape.blocks) is not None:
        return (
            emit_rope_and_cache(module, f"{name}_rope", path, mixer),
            attend,
            emit_block_keys(module, f"{name}_block_keys", path, blocks.heads),
            emit_choose_blocks(module, f"{name}_choose_blocks", path, blocks.heads, run),
        )
    if (latent := shape.latent) is None:
        return emit_rope_and_cache(module, f"{name}_rope", path, mixer), attend
    rows, index = emit_latent_rows(module, f"{name}_rows", path, latent.heads), latent.index
    if (pools := latent.pools) is not None:
        return (
            rows,
            attend,
            emit_pool_keys(module, f"{name}_pool_keys", path, pools.heads),
            emit_choose_pools(module, f"{name}_choose_pools", path, pools.heads.scores, run),
            emit_copy_rows(module, f"{name}_copy_rows", path, latent.heads.attention),
        )
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
class _Layer(MixerCalls, FeedForwardCalls, InputCalls):
    """Emits one layer."""

    def emit(self) -> None:
        shape = self.shape
        self._read_streams("mixer")
        if shape.space is not None:
            self._mix_both(shape.attention, shape.space)
        elif shape.mixer is not None:
            self._mix(shape.mixer)
        if shape.has_feed_forward:
            self._read_streams("mlp")
            self._feed_forward()
        if shape.inputs is not None:
            self._add_inputs(shape.inputs)
        if shape.has_scale:
            self._scale()
        if shape.rounds_to is not None:
            self._round(shape.rounds_to)

    def _round(self, kind: int) -> None:
        hidden = self.step.hidden
        streams = self.shape.streams
        width = self.shape.hidden if streams is None else streams.width
        for span in self.e.spans(width, LANES):
            hidden[span] = to_f32(from_f32(hidden[span], kind), kind)

    def _scale(self) -> None:
        hidden, factor = self.step.hidden, self.layer.scale[0]
        for span in self.e.spans(self.shape.hidden, LANES):
            hidden[span] = hidden[span] * factor
