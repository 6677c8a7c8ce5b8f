"""Measure how long a model's layers take on a device: the numbers that the planner uses.

The measured layers have the model's shape and random weights. Several of each kind run one after
the other: a single small layer would stay in the processor's cache, which never happens in a whole
model. Each kind is timed with the same number of layers, even if the model has fewer of it. Time and
memory are bounded: where memory is short, a long conversation is concluded from a shorter one. The caller keeps the result by (device, shape, scheme, cache).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import median

import torch
from torch import Tensor

from potluck.engine.caches.new_cache import new_cache
from potluck.engine.device import CacheForm, is_wide, synchronize
from potluck.engine.generated.runs import make_runs
from potluck.engine.layers.attention import Step
from potluck.engine.layers.choosing import some_choice
from potluck.engine.layers.rotary import Rotary
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.weights import random_weights
from potluck.engine.memory import out_of_memory, release
from potluck.engine.sampling.sampler import Sampler
from potluck.errors import OutOfMemoryError, format_bytes
from potluck.model.caches import CacheSizes, cache_sizes
from potluck.model.config import ModelConfig
from potluck.model.footprint import working_bytes
from potluck.model.layers import LayerKind
from potluck.model.measured import CACHED, Depths, cached_tokens, deep_tokens
from potluck.model.schemes import Cache, Scheme, held_scheme
from potluck.model.tensor_formats import weight_bytes
from potluck.wire.activation_messages import Sampling

WORKING_SET = 256 * 10**6  # bytes of layers: more than the caches of a home's processors
# A token reads a few experts, scattered in memory. The more memory, the longer page lookups take: a layer
# of Qwen3-30B-A3B in int4 (340 MB) takes 0.87 ms alone, 0.96 ms among 4, 0.98 to 1.07 ms among 24.
SCATTERED_SET = 1000 * 10**6
BUDGET_S = 0.25  # seconds for each figure, beyond its first run
# Of it: a model that fits into a processor's cache is fast wherever it runs, and need not be known as well.
_LEAST_SHARE = 1 / 8
_ROUNDS = 8  # that a token goes through the layers on a GPU: what a call costs is not a layer's, and far more than one takes
_DEEP = 4  # how many times shorter a figure of a long conversation is measured: of its time, little is noise
_LOOKS = 2  # measurements of each; the best counts, since other programs may interrupt one
_INPUTS = 8
_PICTURE_CELLS = 8  # of the side of the picture that a tower is timed with
_LIKELY, _ABOVE = 8, 20.0  # how many tokens are likely, and how much higher their logits are


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Milliseconds of one layer: for one token, for one chunk, and for both in a long conversation."""

    decode_ms: float
    prefill_ms: float
    deep_decode_ms: float
    deep_prefill_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """The measured times of each kind of layer of the model, of the head for one token, and of the tower for a large picture."""

    kinds: Mapping[LayerKind, LayerTimes]
    head_ms: float
    deep: int  # tokens in the cache of the times that are `deep`
    picture_ms: float = 0.0  # 0: there is no tower


@torch.inference_mode()
def profile_layers(
    config: ModelConfig,
    device: torch.device,
    scheme: Scheme,
    *,
    chunk: int,
    memory: int,
    cache: Cache = "full",
    budget_s: float | None = None,
) -> LayerProfile:
    """Time one token and a chunk through a layer of each kind, and norm, `lm_head` and sampling.

    A token's time is the mean over `cached_tokens`.

    Args:
        config: the model whose shape is measured.
        device: the device to measure.
        scheme: the scheme of its weights.
        chunk: tokens of a prefill chunk.
        memory: bytes that may be used.
        cache: how keys and values are kept.
        budget_s: about how long each figure may take; None: `BUDGET_S`, and less for a small model.

    Raises:
        OutOfMemoryError: one layer alone needs more than `memory`.
    """
    times: dict[LayerKind, LayerTimes] = {}
    has_wide = is_wide(scheme, device, cache, exceeds_f16=config.exceeds_f16)
    if budget_s is None:
        whole = sum(_layer_bytes(config, scheme, has_wide))
        budget_s = BUDGET_S * min(1.0, max(_LEAST_SHARE, whole / WORKING_SET))
    with out_of_memory("measure one layer of this model", device):
        for kind in dict.fromkeys(config.layer_kinds):
            some, deep = sample_layers(
                config, kind, scheme, cache, memory, chunk=chunk, is_wide=has_wide
            )
            times[kind] = _time_layers(config, some, deep, device, scheme, cache, chunk, budget_s)
        head_ms = _time_head(config, device, scheme, min(WORKING_SET, memory // 2), budget_s)
        picture_ms = _time_tower(config, device, scheme, budget_s)
    release(device)
    return LayerProfile(
        kinds=times, head_ms=head_ms, deep=deep_tokens(config), picture_ms=picture_ms
    )


def sample_layers(
    config: ModelConfig,
    kind: LayerKind,
    scheme: Scheme,
    cache: Cache,
    memory: int,
    *,
    chunk: int,
    is_wide: bool = False,
) -> tuple[list[int], int]:
    """Indices of layers of a kind, so many that they do not fit into the processor's cache, and how many tokens are cached.

    An index appears more than once where the model has too few; each time the layer gets weights of its
    own. They are never larger than the whole model or than half of `memory`: a model that fits into a
    cache also runs there. They have room for `deep_tokens` and a chunk; if this and its work do not fit into `memory`
    for one layer, for fewer tokens, but never for fewer than `CACHED`.

    Raises:
        OutOfMemoryError: one layer alone needs more than `memory`.
    """
    like = [layer for layer, other in enumerate(config.layer_kinds) if other == kind]
    layer_bytes = _layer_bytes(config, scheme, is_wide)
    if (one := layer_bytes[like[0]]) > memory:  # refused before the computer starts to swap
        raise OutOfMemoryError(
            f"One layer of this model has {format_bytes(one)}, and this computer lends"
            f" {format_bytes(memory)}. It cannot take part with this model.",
            needed=one,
            available=memory,
        )
    sizes = cache_sizes(scheme, cache, is_wide=is_wide)

    def needs(deep: int) -> tuple[int, int]:
        room = deep + chunk
        spec = config.layers[like[0]].cache(replace(sizes, slack=room))  # see `_time_layers`
        return one + spec.nbytes(room), working_bytes(config, room)

    deep = deep_tokens(config)
    while sum(needs(deep)) > memory and deep > CACHED:
        deep = max(CACHED, deep // 2)
    each, working = needs(deep)
    whole = sum(layer_bytes) + len(layer_bytes) * (each - one)
    wanted = SCATTERED_SET if kind.has_experts else WORKING_SET
    count = min(-(-min(wanted, memory // 2, whole) // each), (memory - working) // each)
    return list(islice(cycle(like), max(1, count))), deep


def _layer_bytes(config: ModelConfig, scheme: Scheme, is_wide: bool) -> list[int]:
    """Bytes of each layer's weights as a stage holds them."""
    held = held_scheme(scheme, is_wide=is_wide)
    layers = range(config.num_layers)
    return [weight_bytes(config, config.layer_tensors(layer), held) for layer in layers]


def _time_layers(
    config: ModelConfig,
    layers: Sequence[int],
    deep: int,
    device: torch.device,
    scheme: Scheme,
    cache: Cache,
    chunk: int,
    budget_s: float,
) -> LayerTimes:
    weights = random_weights(
        config, layers, embedding=False, head=False, scheme=scheme, device=device, cache=cache
    )
    ropes, dtype = config.ropes, weights.cache_dtype
    room = deep + chunk
    rotaries = [Rotary(rope, room, weights.dtype, device) for rope in ropes]
    # Also a layer with a window has all rows here: a token takes the same time, and none has to move.
    sizes = CacheSizes(number_bytes=dtype.itemsize, slack=room)
    specs, follows = [config.layers[layer].cache(sizes) for layer in layers], weights.follows
    caches = [new_cache(spec, dtype, device) for spec in specs]
    for spec, one in zip(specs, caches, strict=True):
        one.resize(spec.rows(room), 0)
        one.both.zero_()  # untouched memory would be one shared page, which stays in a cache
    runs = weights.runs
    if device.type != "cpu":
        runs = make_runs(weights.blocks * _ROUNDS, weights.graphs, None, CacheForm(dtype))
        caches *= _ROUNDS

    def run(position: int, tokens: int, some: int | None = None) -> Callable[[], None]:
        # Several tokens in turns, since each chooses other experts.
        inputs = cycle([_hidden(weights, tokens) for _ in range(_INPUTS)])
        ids = torch.zeros(tokens, dtype=torch.int32)

        def once() -> None:
            step, y = Step(position, tokens, rotaries, device, ids), next(inputs)
            if follows is not None:
                step.choice = some_choice(follows, position, tokens, device)
            if tokens == 1:
                for run_of_layers in runs:
                    y = run_of_layers(y, caches, step)
                return
            for block, one in zip(cycle(weights.blocks), caches[:some], strict=False):
                y = block.forward(y, one, step)

        return once

    count, share = len(caches), budget_s / _LOOKS

    def look() -> tuple[float, ...]:
        # Prefill first: it writes the cache that the token then attends to.
        prefill_ms = _time(run(0, chunk), device, share) / count
        token_ms = _time(run(CACHED, 1), device, share) / count
        deep_token_ms = _time(run(deep, 1), device, share / _DEEP) / count
        # A chunk computes, wherever the weights are: so one layer is enough. What a step costs beside it is in both.
        first_ms, deep_ms = (_time(run(at, chunk, 1), device, share / _DEEP) for at in (0, deep))
        return token_ms, prefill_ms, deep_token_ms, first_ms, deep_ms

    measured = map(min, zip(*(look() for _ in range(_LOOKS)), strict=True))
    token_ms, prefill_ms, deep_token_ms, first_ms, deep_ms = measured
    depths = Depths(config.layers[layers[0]].cache(CacheSizes(number_bytes=dtype.itemsize)), chunk)
    per_token = depths.token_slope(token_ms, deep_token_ms, (CACHED,), deep)
    per_chunk = depths.chunk_slope(first_ms, deep_ms, deep)
    far = deep_tokens(config)
    return LayerTimes(
        decode_ms=token_ms + per_token * depths.token_more((CACHED,), cached_tokens(config)),
        prefill_ms=prefill_ms,
        deep_decode_ms=token_ms + per_token * depths.token_more((CACHED,), (far,)),
        deep_prefill_ms=prefill_ms + per_chunk * depths.chunk_more(far),
    )


def _time_head(
    config: ModelConfig, device: torch.device, scheme: Scheme, nbytes: int, budget_s: float
) -> float:
    """Time the head with a part of the vocabulary and scale it up: a whole head may have gigabytes."""
    row_bytes = weight_bytes(config, config.head_tensors(), scheme) // config.vocab_size
    rows = max(1, min(config.vocab_size, nbytes // max(1, row_bytes)))
    part = replace(config, vocab_size=rows)
    weights = random_weights(part, (), embedding=False, head=True, scheme=scheme, device=device)
    norm, lm_head = weights.norm, weights.lm_head
    assert norm is not None
    assert lm_head is not None
    x = _hidden(weights, 1)
    # A few are far above the rest, as in a trained model. Equal ones would all have to be sorted.
    logits = torch.randn(config.vocab_size)
    logits[:_LIKELY] += _ABOVE
    logits = logits.to(device)
    sampler, sampling = Sampler(), Sampling(temperature=0.7, top_p=0.95)

    def look() -> float:
        share = budget_s / 2 / _LOOKS
        products_ms = _time(lambda: lm_head(norm(x)).float(), device, share)
        choice_ms = _time(
            lambda: sampler.choose(logits, sampling, position=0, history=()), device, share
        )
        return products_ms * config.vocab_size / rows + choice_ms

    return min(look() for _ in range(_LOOKS))


def _time_tower(
    config: ModelConfig, device: torch.device, scheme: Scheme, budget_s: float
) -> float:
    """Time one layer of the tower, and what is around the layers, with a small picture, and scale both up.

    A large one may take a minute. That attention grows faster than the number of patches is left out.
    """
    if (tower := config.tower) is None:
        return 0.0
    cells = _PICTURE_CELLS
    if tower.side and not tower.facts.is_stretched:
        cells = min(cells, tower.side // tower.merge)
    side = cells * tower.merge
    pixels = torch.rand(side * tower.patch, side * tower.patch, 3)

    def look(layers: int) -> float:
        part = replace(
            tower, layers=layers, deep_layers=(), side=side if tower.square else tower.side
        )
        weights = random_weights(
            replace(config, tower=part),
            (),
            embedding=False,
            head=False,
            tower=True,
            scheme=scheme,
            device=device,
        )
        read = weights.tower
        assert read is not None
        return _time(lambda: read(pixels), device, budget_s / 2)

    few = min(1, tower.layers)  # of Gemma 4 12B there are none
    whole_ms = look(few)
    if few:
        layer_ms = max(look(2) - whole_ms, whole_ms / 2)
        whole_ms += (tower.layers - 1) * layer_ms
    return whole_ms * tower.rows_of_picture / cells**2


def _hidden(weights: StageWeights, tokens: int) -> Tensor:
    x = torch.randn(tokens, weights.config.width)
    return x.to(weights.device, weights.dtype)


def _time(once: Callable[[], object], device: torch.device, budget_s: float) -> float:
    """The median in milliseconds of as many runs as the budget allows, at least three after a warm-up.

    If the first run alone exceeds the budget, its time is the result.
    """
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while True:
        synchronize(device)
        start = time.perf_counter()
        once()
        synchronize(device)
        now = time.perf_counter()
        times.append((now - start) * 1e3)
        if now >= end and (len(times) > 3 or times[0] > budget_s * 1e3):
            return median(times[1:] or times)
