"""Single tokens of several sessions in one forward pass, with weights of 16 bits: each as if it were alone.

A token alone goes through generated layers, with hidden states in f32 that are rounded to 16 bits after each
layer. Here kernels with the same order of sums compute the same for some tokens: weights are read once
for a few of them. A prompt's chunk is computed by torch, which is faster where there are many rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.device import CacheForm
from potluck.engine.kernels import Kernels, ReferenceKernels
from potluck.engine.layers.attention import Attention, Step
from potluck.engine.layers.block_index import WithIndex
from potluck.engine.layers.blocks import DecoderLayer, Mixer
from potluck.engine.layers.delta_net import DeltaNet
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.mlp import GatedMlp, Mlp, MoE
from potluck.engine.layers.norms import KernelNorm, RmsNorm
from potluck.engine.layers.parallel import ParallelMoE

if TYPE_CHECKING:
    from potluck.engine.kernels.called.generated import GeneratedKernels


class Singles:
    """Layers that share the weights of others, and compute with hidden states of f32."""

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        self._layers = tuple(layers)

    def __call__(self, x: Tensor, caches: Sequence[SessionCache], steps: Sequence[Step]) -> Tensor:
        """Run a token of each session, (T, D) of 16 bits, through the layers."""
        dtype = x.dtype
        for step in steps:
            step.angles = [angles.float() for angles in step.angles]
        for index, layer in enumerate(self._layers):
            own = [cache.layers[index] for cache in caches]
            x = layer.forward_all(x.float(), own, steps).to(dtype)
        return x


def as_generated(kernels: Kernels | None) -> "GeneratedKernels | None":
    """The kernels, if they are generated ones."""
    if kernels is None or isinstance(kernels, ReferenceKernels):
        return None
    # Imported late: it brings llvmlite, which does not load on every computer.
    from potluck.engine.kernels.called.generated import GeneratedKernels

    assert isinstance(kernels, GeneratedKernels)
    return kernels


def make_singles(
    blocks: Sequence[DecoderLayer], kernels: Kernels | None, cache: CacheForm
) -> Singles | None:
    """Make them of layers of plain numbers, with keys and values in this form.

    None: one token of these is not computed by generated functions.
    """
    if (generated := as_generated(kernels)) is None:
        return None
    from potluck.engine.generated.layers import is_generable

    if not all(is_generable(block.spec) and isinstance(block.mixer, Attention) for block in blocks):
        return None
    if any(block.spec.streams is not None for block in blocks):
        return None
    if any(isinstance(block.mixer, WithIndex) for block in blocks):
        return None
    if any(block.spec.carried is not None for block in blocks):
        return None  # one after the other: these read a table on the disk anyway
    return Singles([_layer(block, generated, cache) for block in blocks])


def _layer(block: DecoderLayer, kernels: "GeneratedKernels", cache: CacheForm) -> DecoderLayer:
    from potluck.engine.generated.attention import GeneratedAttention
    from potluck.engine.generated.delta_net import GeneratedDeltaNet

    mlp = block.mlp
    assert mlp is not None

    def linear(one: Linear) -> Linear:
        assert isinstance(one, FloatLinear)
        return FloatLinear(one.weight, one.bias, kernels.multiply_plain)

    def gated(one: Mlp) -> Mlp:
        assert isinstance(one, GatedMlp)
        return GatedMlp(
            linear(one.gate_up), linear(one.down), one.activation, kernels.gate, one.learned
        )

    def norm(one: RmsNorm) -> RmsNorm:
        return KernelNorm(one.weight, one.eps, kernels, one.kind)

    match block.mixer:
        case Attention(spec=spec, qkv=qkv, qk_norm=qk_norm, output=output, sinks=sinks):
            first, last = linear(qkv), linear(output)
            mixer: Mixer = GeneratedAttention(
                spec, first, qk_norm, last, sinks, kernels=kernels, cache=cache
            )
        case DeltaNet(spec=spec, input=first, tensors=tensors, output=last):
            first, last, f32 = linear(first), linear(last), torch.float32
            mixer = GeneratedDeltaNet(spec, first, tensors, last, dtype=f32, kernels=kernels)
        case other:
            raise AssertionError(other)

    def mixture(one: MoE) -> MoE:
        shared = None if one.shared is None else gated(one.shared)
        experts = [gated(expert) for expert in one.experts]
        narrow = None if one.narrow is None else (linear(one.narrow[0]), linear(one.narrow[1]))
        return MoE(one.router, experts, shared, narrow=narrow, route=kernels.route)

    match mlp:
        case ParallelMoE():
            feed_forward: Mlp | MoE | ParallelMoE = ParallelMoE(
                gated(mlp.dense), mixture(mlp.moe), mlp.norms.map(norm), norm(mlp.router_norm)
            )
        case MoE():
            feed_forward = mixture(mlp)
        case _:
            feed_forward = gated(mlp)
    return DecoderLayer(block.spec, mixer, feed_forward, block.norms.map(norm), block.scale)
