"""The memory that a stage takes: its weights, its sessions' caches, and its working memory."""

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import OutOfMemoryError, format_bytes
from potluck.model.caches import MAX_CHUNK_TOKENS, cache_sizes, session_bytes
from potluck.model.config import ModelConfig
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme, weight_bytes

CAPPED_QUERIES = 256  # queries whose scores are in memory at a time, if torch softcaps (Gemma 2)
_GPU_SHARE = 0.85
_ITEM = 4  # bytes of a number in a computation, the most that any device takes
_MASK = 5  # bytes for each query and key: a bool mask, and a number that is added to the score
_SCORE = 10  # bytes of a score with a softcap: itself in f32, its softmax, and that in 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of a stage."""

    weights: int
    cache: int  # of one session that fills the context
    working: int  # see `working_bytes`

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working

    def check(self, free: int, who: str, context: int) -> None:
        """Refuse a stage that does not fit, with the numbers.

        Args:
            free: bytes that the computer lends.
            who: the computer's name.
            context: tokens that the footprint was made for.

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
    """Return the memory that a stage of these layers takes."""
    layers = list(layers)
    tensors = config.stage_tensors(layers, embedding=embedding, head=head)
    sizes = cache_sizes(scheme, cache)
    return Footprint(
        weights=weight_bytes(config, tensors, scheme),
        cache=session_bytes((config.layers[layer].mixer.cache(sizes) for layer in layers), context),
        working=working_bytes(config, context),
    )


def usable_memory(free: int, kind: str, scheme: Scheme) -> int:
    """Return how many bytes of packed weights, as counted here, fit into a device's free bytes.

    The form that the products of a GPU (`cuda`, `mps`) read takes up to 1.18 times as much.
    """
    return free if kind == "cpu" or scheme not in PACKED_SCHEMES else int(free * _GPU_SHARE)


def working_bytes(config: ModelConfig, context: int) -> int:
    """Return the bytes of a stage's working memory, beside weights and caches.

    They are the memory for a chunk of a prompt in the larger half of a layer, a row of logits, and
    the last step's hidden states, which are kept in case the step is repeated. Both halves of a
    layer have its input, their norm and their output. Attention also has queries, keys and values,
    its result, the cached keys and values in the compute dtype, a mask, and scores if torch
    computes them explicitly. The MLP also has gate, up and their product.
    """
    chunk, hidden = min(MAX_CHUNK_TOKENS, context), 4 * config.hidden_size
    mlp = config.intermediate_size
    if (experts := config.experts) is not None:
        mlp = max(mlp, experts.per_token * experts.intermediate_size)
    attention = _ITEM * chunk * (hidden + 2 * config.q_size + 2 * config.kv_size)
    attention += (config.kv_bytes_per_token(_ITEM) + _MASK * chunk) * context
    if config.attention_softcap is not None:
        attention += _SCORE * config.num_heads * min(CAPPED_QUERIES, chunk) * context
    kept = chunk * config.hidden_size
    logits = 4 * config.vocab_size  # sampling sorts a copy, with its order
    return max(attention, _ITEM * chunk * (hidden + 3 * mlp)) + _ITEM * (kept + logits)
