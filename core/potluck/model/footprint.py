"""What a stage takes in memory: its weights, its sessions' caches, and what it computes with."""

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import OutOfMemoryError, format_bytes
from potluck.model.config import ModelConfig
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme, cache_bytes, weight_bytes

MAX_CHUNK_TOKENS = 512  # of prefill, that the driver sends at once; a stage takes no more
CAPPED_QUERIES = 256  # whose scores are held at a time where torch caps them (Gemma 2)
_GPU_SHARE = 0.85
_ITEM = 4  # bytes of a number that is computed with: the most that any device takes
_MASK = 5  # bytes for each query and key: whether it is seen, and what is added to its score
_SCORE = 10  # bytes where it is capped: itself in f32, its softmax, and that in 16 bits


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
    return free if kind == "cpu" or scheme not in PACKED_SCHEMES else int(free * _GPU_SHARE)


def working_bytes(config: ModelConfig, context: int) -> int:
    """What a chunk of prefill needs on its way through a layer, and a row of logits after it.

    Of a layer's two halves the larger one. Both have its input, their norm and their output.
    Attention: queries, keys and values, and what is attended; keys and values of all that is cached,
    as they are computed with; who sees whom, and scores where torch computes them one by one. The
    MLP: gate, up and their product.
    """
    chunk, hidden = min(MAX_CHUNK_TOKENS, context), 4 * config.hidden_size
    mlp = config.intermediate_size
    if (experts := config.experts) is not None:
        mlp = max(mlp, experts.per_token * experts.intermediate_size)
    attention = _ITEM * chunk * (hidden + 2 * config.q_size + 2 * config.kv_size)
    attention += (config.kv_bytes_per_token(_ITEM) + _MASK * chunk) * context
    if config.attention_softcap is not None:
        attention += _SCORE * config.num_heads * min(CAPPED_QUERIES, chunk) * context
    logits = 4 * config.vocab_size  # sampling sorts a copy, with its order
    return max(attention, _ITEM * chunk * (hidden + 3 * mlp)) + _ITEM * logits
