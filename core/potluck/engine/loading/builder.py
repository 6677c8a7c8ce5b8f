"""Make the layers of a stage from their specifications, allocate their weights, and have them filled.

Matrices are allocated as they are computed with: queries, keys and values in one, gates and ups in one,
of the compute dtype or packed. The caller's `fill` writes them, layer by layer; what changes loaded
weights (a norm's 1 + weight, the way to a GPU) is done after that.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.accelerator import find_graphs
from potluck.engine.device import CacheForm, cache_dtype
from potluck.engine.generated.runs import make_runs
from potluck.engine.generated.singles import make_singles
from potluck.engine.layers.beside import Beside
from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.layers.carried import CarriedLayer
from potluck.engine.layers.streams import StreamLayer
from potluck.engine.loading.attention_builder import AttentionBuilder
from potluck.engine.loading.carried_builder import CarriedBuilder
from potluck.engine.loading.feed_forward_builder import FeedForwardBuilder
from potluck.engine.loading.filling import Fill, Filling
from potluck.engine.loading.pooled_builder import PooledBuilder
from potluck.engine.loading.recurrent_builder import RecurrentBuilder
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.stream_builder import StreamBuilder
from potluck.engine.vision.tower import Tower
from potluck.model.config import ModelConfig
from potluck.model.layers import DenseSpec, MoeSpec, ParallelSpec
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec, BesideSpec
from potluck.model.mixing.pooled import PooledSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec
from potluck.model.naming import EMBEDDING
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme
from potluck.model.shares import Share
from potluck.model.tensor_formats import tensor_format
from potluck.model.vision.spec import TowerSpec

_TOWER_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@torch.inference_mode()
def build_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    tower: bool = False,
    scheme: Scheme,
    device: torch.device,
    fill: Fill,
    cache: Cache = "full",
    kept: StageWeights | None = None,
    share: Share | None = None,
) -> StageWeights:
    """Allocate a stage's matrices and have them filled, layer by layer.

    Args:
        config: of the model, or of what a rank holds of it.
        layers: of the stage.
        embedding: whether it has the embedding.
        head: whether it has the final norm and the head.
        tower: whether it has the vision tower, if the model has one, also without the embedding.
        scheme: how the weights are held.
        device: the device of the weights.
        fill: called with the targets that were allocated.
        cache: how keys and values are held.
        kept: parts that are loaded already, of the same model, scheme, device and cache; what `keep`
            gave for these layers. They are used as they are, and not filled.
        share: of the rank whose config it is.
    """
    dtype = cache_dtype(scheme, device, cache, exceeds_f16=config.exceeds_f16)
    keys = CacheForm(dtype, scheme in PACKED_SCHEMES)
    filling = Filling(fill, device)
    builder = _Builder(config, scheme, device, keys, filling, kept)
    is_tied = embedding and head and config.tie_word_embeddings
    loaded = {} if kept is None else dict(zip(kept.layers, kept.blocks, strict=True))
    first = None if kept is None else kept.embedding
    norm, lm_head = (None, None) if kept is None else (kept.norm, kept.lm_head)
    table, seeing = None, None if kept is None else kept.tower
    if embedding and first is None:
        with filling.layer():
            table = builder.matrix(EMBEDDING)
    if (embedding or tower) and seeing is None and config.tower is not None:
        with filling.layer():
            seeing = builder.tower(config.tower)
    if head and lm_head is None:  # filled first: waiting for the largest matrix last takes longest
        with filling.layer():
            norm = builder.final_norm()
            matrix = table if is_tied and table is not None else builder.matrix(config.head_name)
            lm_head = builder.lm_head(matrix)
    blocks: list[DecoderLayer] = []
    for layer in layers:
        if layer in loaded:
            blocks.append(loaded[layer])
            continue
        with filling.layer():
            blocks.append(builder.layer(layer))
    filling.finish()
    graphs = find_graphs(device) if kept is None else kept.graphs
    runs = make_runs(blocks, graphs, builder.run_kernels, keys)
    is_narrow = builder.dtype.itemsize == 2
    singles = make_singles(blocks, builder.run_kernels, keys) if is_narrow else None
    return StageWeights(
        config=config,
        layers=layers,
        blocks=tuple(blocks),
        runs=runs,
        embedding=builder.embedding(table) if table is not None else first,
        norm=norm,
        lm_head=lm_head,
        is_tied=is_tied,
        dtype=builder.dtype,
        cache_dtype=keys.dtype,
        device=device,
        graphs=graphs,
        is_generated=builder.generated is not None,
        singles=singles,
        kernels=builder.run_kernels,
        scratch=builder.scratch,
        share=share,
        tower=seeing,
    )


class _Builder(
    AttentionBuilder,
    FeedForwardBuilder,
    CarriedBuilder,
    StreamBuilder,
    PooledBuilder,
    RecurrentBuilder,
):
    """Makes layers."""

    def layer(self, index: int) -> DecoderLayer:
        spec, prefix = self._config.layers[index], self._config.layer_prefix(index)
        mixer = mlp = None
        match spec.mixer:
            case None:
                pass
            case AttentionSpec() as attention:
                mixer = self._attention(prefix, attention)
            case LatentSpec() as latent:
                mixer = self._latent(prefix, latent)
            case DeltaNetSpec() as delta_net:
                mixer = self._delta_net(prefix, delta_net)
            case ChannelDeltaSpec() as channel_delta:
                mixer = self._channel_delta(prefix, channel_delta)
            case MambaSpec() as mamba:
                mixer = self._mamba(prefix, mamba)
            case BesideSpec(attention=attention, mamba=mamba) as beside:
                first = self._attention(prefix, attention)
                mixer = Beside(beside, first, self._mamba(prefix, mamba), dtype=self.dtype)
            case ConvolutionSpec() as convolution:
                mixer = self._convolution(prefix, convolution)
            case PooledSpec() as pooled:
                mixer = self._pooled(prefix, pooled)
        match spec.feed_forward:
            case None:
                pass
            case DenseSpec() as dense:
                mlp = self._mlp(prefix, dense)
            case MoeSpec() as moe:
                mlp = self._moe(prefix, moe)
            case ParallelSpec() as parallel:
                mlp = self._parallel(prefix, parallel, spec.norm_eps)
        eps, kind = spec.norm_eps, spec.norm_kind
        after = spec.norms.after_mixer, spec.norms.after_mlp
        after_eps = eps if spec.after_norm_eps is None else spec.after_norm_eps
        norms = spec.norms.map(
            lambda name: self.norm(
                f"{prefix}{name}.weight", after_eps if name in after else eps, kind=kind
            )
        )
        if (streams := spec.streams) is not None:
            assert mixer is not None
            assert mlp is not None
            first, second = (self._mix(prefix, one, eps) for one in streams.blocks)
            before = None if spec.ngrams is None else self._ngrams(prefix, spec.ngrams, eps)
            return StreamLayer(spec, mixer, mlp, norms, first, second, before)
        scale = self._vector(prefix, spec.scale, 1)
        if spec.carried is not None:
            inputs = None if spec.inputs is None else self._inputs(prefix, spec.inputs, eps)
            return CarriedLayer(spec, mixer, mlp, norms, scale, inputs)
        return DecoderLayer(spec, mixer, mlp, norms, scale)

    def tower(self, spec: TowerSpec) -> Tower:
        """What reads pictures."""
        tensors: dict[str, Tensor] = {}
        for name, shape in spec.tensors().items():
            held = _TOWER_DTYPES[tensor_format(self._config, name, shape, self._scheme).name]
            # A number is held as a row of one: targets are filled row by row.
            memory = torch.empty(shape or (1,), dtype=held, device=self._device)
            tensors[name] = self._filling.tensor(name, memory)
        return Tower(spec, tensors, self._device)
