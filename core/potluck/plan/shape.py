"""The sizes of a model for the planner, computed from its configuration."""

from collections.abc import Mapping
from math import prod

from potluck.model.caches import CacheSizes, cache_sizes
from potluck.model.config import ModelConfig
from potluck.model.footprint import working_bytes
from potluck.model.layers import LayerKind, LayerSpec
from potluck.model.measured import cached_tokens
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.schemes import Cache, Scheme, activation_item, held_scheme
from potluck.model.shares import Share, share_layer
from potluck.model.tensor_formats import in_memory, table_bytes, weight_bytes
from potluck.plan.cost import ModelShape


def shape_of(
    config: ModelConfig,
    scheme: Scheme,
    *,
    context: int,
    cache: Cache = "full",
    is_wide: bool = False,
) -> ModelShape:
    """The sizes of a model in one scheme, for a context of so many tokens; `is_wide` as of `stage_footprint`."""
    held, tower = held_scheme(scheme, is_wide=is_wide), config.tower

    def nbytes(tensors: Mapping[str, tuple[int, ...]]) -> int:
        return weight_bytes(config, tensors, held)

    layers, sizes = numbered_kinds(config), cache_sizes(scheme, cache, is_wide=is_wide)
    examples = [layers.index(kind) for kind in sorted(set(layers))]
    tensors = [config.layer_tensors(layer) for layer in examples]
    expert_bytes = tuple(
        nbytes({name: shape for name, shape in of_kind.items() if config.is_of_expert(name)})
        for of_kind in tensors
    )
    disk_bytes = tuple(table_bytes(config.layers[layer].tensors()) for layer in examples)
    shared = {
        name: shape for layer in config.layers for name, shape in layer.shared_tensors.items()
    }
    return ModelShape(
        layers=layers,
        layer_bytes=tuple(map(nbytes, tensors)),
        cache_bytes=tuple(_cache_bytes(config, layer, sizes, context) for layer in examples),
        later_cache_bytes=sum(
            config.layers[layer].cache(sizes).nbytes(context) for layer in _giving(config)
        ),
        embedding_bytes=nbytes(config.embedding_tensors()),
        head_bytes=nbytes(config.head_tensors()),
        picture_bytes=working_bytes(config, context, embedding=True)
        - working_bytes(config, context),
        picture_tokens=_picture_tokens(config),
        tower_bytes=nbytes(config.tower_tensors()),
        pixel_bytes=0 if tower is None else 3 * tower.rows_of_picture * tower.cell_side**2,
        row_bytes=0 if tower is None else 4 * tower.rows_of_picture * tower.row,
        hidden_bytes=config.width * activation_item(scheme),
        tied=config.tie_word_embeddings,
        hidden_size=config.hidden_size,
        divided=tuple(_divided(config, layer, held) for layer in examples),
        expert_bytes=expert_bytes if any(expert_bytes) else (),
        expert_part=1.0 if config.experts is None else config.experts.part,
        disk_bytes=disk_bytes if any(disk_bytes) else (),
        caches=tuple(config.layers[layer].cache(sizes) for layer in examples),
        depths=cached_tokens(config),
        shared_disk_bytes=table_bytes(shared),
    )


def _giving(config: ModelConfig) -> list[int]:
    """The layers whose keys and values later ones take."""
    mixers = enumerate(layer.mixer for layer in config.layers)
    return [at for at, one in mixers if isinstance(one, AttentionSpec) and one.gives is not None]


def _cache_bytes(config: ModelConfig, layer: int, sizes: CacheSizes, context: int) -> int:
    """What is cached in a layer and, of its keys and values, in later ones: see `cache_owners`."""
    spec = config.layers[layer]
    if isinstance(spec.mixer, AttentionSpec) and spec.mixer.takes is not None:
        return 0
    is_twice = sizes.number_bytes == 1 and layer in _giving(config)
    return spec.cache(sizes).nbytes(context) * (1 + is_twice)


def _picture_tokens(config: ModelConfig) -> float:
    """How many tokens in the first layer multiply as many numbers as a large picture in the tower."""
    if config.tower is None:
        return 0.0
    weights = sum(prod(shape) for shape in config.tower_tensors().values())
    patches = config.tower.rows_of_picture * config.tower.cell
    expert_part = 1.0 if config.experts is None else config.experts.part
    one_token = sum(
        prod(shape) * (expert_part if config.is_of_expert(name) else 1.0)
        for name, shape in in_memory(config.layer_tensors(0)).items()
    )
    return weights * patches / one_token


def _divided(config: ModelConfig, layer: int, scheme: Scheme) -> float:
    """Which part of a layer's weights two equal ranks would have a half of each; they have the others whole."""
    half = share_layer(config.layers[layer], Share(rank=0, parts=(1, 1)), scheme).spec

    def weights(spec: LayerSpec) -> int:
        return sum(prod(shape) for shape in spec.tensors().values())

    return min(1.0, 2 * (1 - weights(half) / weights(config.layers[layer])))


def read_bytes(shape: ModelShape) -> tuple[int, ...]:
    """Bytes of weights that one token reads in a layer of each kind."""
    return tuple(int(shape.read_bytes((kind,))) for kind in range(len(shape.layer_bytes)))


def kinds_of(config: ModelConfig) -> tuple[LayerKind, ...]:
    """The kinds of layers, in the order of the figures in a profile and in a `ModelShape`."""
    return tuple(dict.fromkeys(config.layer_kinds))


def numbered_kinds(config: ModelConfig) -> tuple[int, ...]:
    """For each layer the number of its kind in `kinds_of`."""
    numbers: dict[LayerKind, int] = {}
    return tuple(numbers.setdefault(kind, len(numbers)) for kind in config.layer_kinds)
