"""What a stage takes in memory: its weights, its sessions' caches, and what it computes with."""

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import OutOfMemoryError, format_bytes
from potluck.model.config import ModelConfig
from potluck.model.schemes import PACKINGS, Cache, Scheme, cache_bytes, weight_bytes

MAX_CHUNK_TOKENS = 512  # of prefill, that the driver sends at once
_GPU_SHARE = 0.85
_ITEM = 4  # bytes of a number that is computed with: the most that any device takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes."""

    weights: int
    cache: int  # of one session of the whole context
    working: int  # hidden states of a chunk, and logits

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working

    def check(self, free: int, who: str, context: int) -> None:
        """Refuse what does not fit, with the numbers.

        Raises:
            OutOfMemoryError: less than the total is free.
        """
        if self.total > free:
            raise OutOfMemoryError(
                f"{who} lends {format_bytes(free)}, and its part of the model needs"
                f" {format_bytes(self.total)}: {format_bytes(self.weights)} of weights,"
                f" {format_bytes(self.cache)} of cache for {context} tokens and"
                f" {format_bytes(self.working)} to compute with. Free memory there, choose a shorter"
                " context or a smaller scheme, or load the model anew.",
                needed=self.total,
                available=free,
            )


def stage_footprint(
    config: ModelConfig,
    layers: Iterable[int],
    *,
    embedding: bool,
    head: bool,
    scheme: Scheme,
    context: int,
    cache: Cache = "full",
) -> Footprint:
    """What these layers take."""
    layers = list(layers)
    tensors = config.stage_tensors(layers, embedding=embedding, head=head)
    return Footprint(
        weights=weight_bytes(config, tensors, scheme),
        cache=len(layers) * cache_bytes(config, scheme, cache) * context,
        working=working_bytes(config, context),
    )


def usable_memory(free: int, kind: str, scheme: Scheme) -> int:
    """What of a device's free bytes is for packed weights as they are counted here.

    In the order that the products of a GPU (`cuda`, `mps`) want they take up to 1.18 times as much.
    """
    return free if kind == "cpu" or scheme not in PACKINGS else int(free * _GPU_SHARE)


def working_bytes(config: ModelConfig, context: int) -> int:
    """What a chunk of prefill needs on its way through a layer, and a row of logits after it.

    The layer's input, its norm and its output; queries, keys and values, and what is attended; gate,
    up and their product; keys and values of one layer as they are computed with; who sees whom.
    """
    hidden, attended = config.hidden_size, config.q_size
    mlp = config.intermediate_size
    if (experts := config.experts) is not None:
        mlp = max(mlp, experts.per_token * experts.intermediate_size)
    chunk = 4 * hidden + 2 * attended + 2 * config.kv_size + 3 * mlp
    logits = 4 * config.vocab_size  # sampling sorts a copy, with its order
    seen = config.kv_bytes_per_token(_ITEM) * context
    mask = min(MAX_CHUNK_TOKENS, context) * context
    return _ITEM * (min(MAX_CHUNK_TOKENS, context) * chunk + logits) + seen + mask
