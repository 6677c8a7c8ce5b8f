"""Runs of layers as generated functions: which layers they can do, and how they are called."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from potluck.engine.attention import Step
from potluck.engine.blocks import (
    DecoderLayer,
    PostNormLayer,
    PreNormLayer,
    SandwichLayer,
    ScaledLayer,
)
from potluck.engine.decoding import Run
from potluck.engine.generated_attention import GeneratedAttention
from potluck.engine.kernels.decode import Decoder, LayerWeights, layer_shape
from potluck.engine.kernels.generated import GeneratedKernels
from potluck.engine.kernels.layer_kernel import LayerShape
from potluck.engine.kvcache import LayerCache
from potluck.engine.linear import PackedLinear
from potluck.engine.mlp import Experts, PackedMlp
from potluck.engine.norms import HeadNorm, ProjectionNorm
from potluck.model.families import NormPlacement

_NORMS: Mapping[type[DecoderLayer], NormPlacement] = {
    PreNormLayer: "before",
    ScaledLayer: "before",
    PostNormLayer: "after",
    SandwichLayer: "around",
}


def run_shape(block: DecoderLayer) -> LayerShape | None:
    """What a function has to be generated for; None: it cannot do this layer."""
    weights = _layer_weights(block)
    if weights is None or not isinstance(block.attention, GeneratedAttention):
        return None
    return layer_shape(
        weights,
        block.attention.shape,
        norms=_NORMS[type(block)],
        epsilon=block.norms[0].eps,
        multiplier=block.multiplier if isinstance(block, ScaledLayer) else 1.0,
        activation=block.mlp.activation if isinstance(block.mlp, PackedMlp) else "silu",
    )


class GeneratedRun(Run):
    """Consecutive layers of one shape. Experts are Python's, with a call for what is before them."""

    def __init__(self, first: int, blocks: Sequence[DecoderLayer], shape: LayerShape) -> None:
        qkv = blocks[0].attention.qkv
        assert isinstance(qkv, PackedLinear)
        assert isinstance(qkv.kernels, GeneratedKernels)
        weights = [_layer_weights(block) for block in blocks]
        layers = [layer for layer in weights if layer is not None]
        self.layers, self.heads = slice(first, first + len(blocks)), shape.attention
        self._decoder = Decoder(qkv.kernels, layers, shape)
        self._experts = [block for block in blocks if isinstance(block.mlp, Experts)]

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        x = x.clone()  # it is updated in place
        memory = [cache.both for cache in caches[self.layers]]
        if not self._experts:
            self._decoder(x, memory, step.position, step.angles)
            return x
        self._decoder.begin(memory, step.position, step.angles)
        for index, block in enumerate(self._experts):
            self._decoder.run(x, index, 1)
            x = block.add_mlp(x)
        return x


def _layer_weights(block: DecoderLayer) -> LayerWeights | None:
    """None where a matrix is not packed, or not in one piece."""
    attention, mlp = block.attention, block.mlp
    qkv, output, norm = attention.qkv, attention.output, attention.qk_norm
    if not isinstance(qkv, PackedLinear) or not isinstance(output, PackedLinear):
        return None
    assert isinstance(norm, HeadNorm | ProjectionNorm | None)
    gate_up = down = None
    norms = block.norms
    if isinstance(mlp, Experts):
        norms = norms[: len(norms) // 2]  # the first half are those of attention
    else:
        if not isinstance(mlp, PackedMlp) or not isinstance(mlp.gate_up, PackedLinear):
            return None
        gate_up, down = mlp.gate_up, mlp.down
    return LayerWeights(
        norms=tuple(one.weight for one in norms),
        qkv=qkv.weight,
        qkv_bias=qkv.bias,
        qk_norm=None if norm is None else norm.weight,
        output=output.weight,
        output_bias=output.bias,
        gate_up=None if gate_up is None else gate_up.weight,
        gate_up_bias=None if gate_up is None else gate_up.bias,
        down=None if down is None else down.weight,
        down_bias=None if down is None else down.bias,
        window=attention.window,
        rope=attention.rope,
    )
