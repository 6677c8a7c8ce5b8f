"""A run of layers as one generated function: which layers it can do, and how it is called."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.attention import Attention, Step
from potluck.engine.blocks import DecoderLayer, PreNormLayer
from potluck.engine.decoding import Run
from potluck.engine.kernels.attention_kernel import Heads
from potluck.engine.kernels.decode import Decoder, LayerWeights
from potluck.engine.kernels.generated import KINDS, GeneratedKernels
from potluck.engine.kvcache import LayerCache
from potluck.engine.linear import PackedLinear
from potluck.engine.mlp import PackedMlp
from potluck.engine.norms import HeadNorm


@dataclass(frozen=True, slots=True)
class RunKey:
    """What layers have in common that one call goes through."""

    heads: Heads
    rope: int | None
    epsilon: float


def run_key(block: DecoderLayer, cache_dtype: torch.dtype) -> RunKey | None:
    """The run that a layer belongs to; None: there is no function for it."""
    attention = block.attention
    norm = attention.qk_norm
    is_known = (
        type(block) is PreNormLayer
        and type(attention) is Attention
        and attention.scale is None
        and isinstance(norm, HeadNorm | None)
        and isinstance(block.mlp, PackedMlp)
        and all(isinstance(matrix, PackedLinear) for matrix in _matrices(block))
        and all(matrix.bias is None for matrix in _packed(block)[1:])
    )
    if not is_known:
        return None
    epsilon = block.norms[0].eps
    heads = Heads(
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        rotary_dim=0 if attention.rope is None else attention.rotary_dim,
        epsilon=norm.eps if isinstance(norm, HeadNorm) else epsilon,
        cache_kind=KINDS[cache_dtype],
    )
    return RunKey(heads, attention.rope, epsilon)


class GeneratedRun(Run):
    """Consecutive layers of one shape."""

    def __init__(self, first: int, blocks: Sequence[DecoderLayer], key: RunKey) -> None:
        kernels = _packed(blocks[0])[0].kernels
        assert isinstance(kernels, GeneratedKernels)
        layers = [_layer_weights(block) for block in blocks]
        self._layers = slice(first, first + len(blocks))
        self._rope = key.rope
        self._decoder = Decoder(kernels, layers, key.heads, key.epsilon)
        self._nothing = torch.empty(0)

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        x = x.clone()  # it is updated in place
        cos = sin = self._nothing
        if self._rope is not None:
            # One row of the cosines, both halves of which are the same, and of the signed sines.
            cos, sin = (angles.view(2, -1)[1] for angles in step.angles[self._rope])
        memory = [cache.both for cache in caches[self._layers]]
        self._decoder(x, memory, step.position, cos, sin)
        return x


def _matrices(block: DecoderLayer) -> list[object]:
    mlp = block.mlp
    assert isinstance(mlp, PackedMlp)
    return [block.attention.qkv, block.attention.output, mlp.gate_up, mlp.down]


def _packed(block: DecoderLayer) -> list[PackedLinear]:
    return [matrix for matrix in _matrices(block) if isinstance(matrix, PackedLinear)]


def _layer_weights(block: DecoderLayer) -> LayerWeights:
    attention = block.attention
    qkv, output, gate_up, down = _packed(block)
    norm = attention.qk_norm
    return LayerWeights(
        input_norm=block.norms[0].weight,
        qkv=qkv.weight,
        qkv_bias=qkv.bias,
        qk_norm=norm.weight if isinstance(norm, HeadNorm) else None,
        output=output.weight,
        post_norm=block.norms[1].weight,
        gate_up=gate_up.weight,
        down=down.weight,
        window=attention.window,
    )
