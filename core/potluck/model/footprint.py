"""The memory that a stage takes: its weights, its sessions' caches, and its working memory."""

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import OutOfMemoryError, format_bytes
from potluck.model.caches import MAX_CHUNK_TOKENS, cache_sizes, session_bytes
from potluck.model.config import ModelConfig
from potluck.model.layers import DenseSpec, FeedForward, MoeSpec, ParallelSpec, owned_caches
from potluck.model.mixing.carried import LayerInputSpec
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.indexer import IndexerSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec, BesideSpec, Mixer
from potluck.model.mixing.ngrams import NgramSpec
from potluck.model.mixing.pooled import PooledSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme, held_scheme
from potluck.model.tensor_formats import weight_bytes
from potluck.model.vision.spec import TowerSpec

CAPPED_QUERIES = 256  # queries whose scores are in memory at a time, where torch holds scores
INDEXED_QUERIES = 32  # queries whose scores of blocks of tokens are in memory at a time
POOL_QUERIES = 32  # queries of attention to pools whose scores are in memory at a time
INDEX_QUERIES = 64  # queries of an indexer whose scores are in memory at a time, in torch
HEADS_AT_ONCE = 8  # of latent attention, whose keys and values are expanded at a time, in torch
_KEPT_PICTURE_BYTES = 64 << 20  # of rows of pictures that were read lately
_GPU_SHARE = 0.85
_POSITION = 8  # bytes of a position
_ITEM = 4  # bytes of a number in a computation, the most that any device takes
_STREAM_COPIES = (
    6  # of several residual streams: input, norm, gates, what they make of it, and output
)
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
                f" {format_bytes(self.cache)} of cache for {context:,} tokens and"
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
    is_wide: bool = False,
    tower: bool = False,
) -> Footprint:
    """Return the memory that a stage of these layers takes.

    `is_wide`: the device holds 32 bits in place of 16, because it has no bf16 and the model exceeds f16.
    """
    layers = list(layers)
    tensors = config.stage_tensors(layers, embedding=embedding, head=head, tower=tower)
    sizes = cache_sizes(scheme, cache, is_wide=is_wide)
    return Footprint(
        weights=weight_bytes(config, tensors, held_scheme(scheme, is_wide=is_wide)),
        cache=session_bytes(
            owned_caches([config.layers[layer] for layer in layers], sizes), context
        ),
        working=working_bytes(config, context, embedding=embedding or tower),
    )


def usable_memory(free: int, kind: str, scheme: Scheme) -> int:
    """Return how many bytes of packed weights, as counted here, fit into a device's free bytes.

    The form that the products of a GPU (`cuda`, `mps`) read takes up to 1.18 times as much.
    """
    return free if kind == "cpu" or scheme not in PACKED_SCHEMES else int(free * _GPU_SHARE)


def working_bytes(config: ModelConfig, context: int, *, embedding: bool = False) -> int:
    """Return the bytes of a stage's working memory, beside weights and caches.

    They are the memory for a chunk of a prompt in the larger half of a layer, a row of logits, and
    the last step's hidden states, which are kept in case the step is repeated. Both halves of a
    layer have its input, their norm and their output. A stage with the `embedding`, or with the tower alone, reads pictures as well:
    in place of a chunk, and beside one it keeps their rows.
    """
    chunk = min(MAX_CHUNK_TOKENS, context)
    halves = {
        _mixer_bytes(spec.mixer, chunk, context) for spec in config.layers if spec.mixer is not None
    }
    halves |= {
        _feed_forward_bytes(spec.feed_forward, chunk)
        for spec in config.layers
        if spec.feed_forward is not None
    }
    halves |= {
        _ngram_bytes(spec.ngrams, chunk) for spec in config.layers if spec.ngrams is not None
    }
    kept = chunk * config.width
    is_one = config.streams is None and config.carried is None
    streams = 0 if is_one else _STREAM_COPIES * chunk * config.width
    halves |= {
        _input_bytes(spec.inputs, chunk) for spec in config.layers if spec.inputs is not None
    }
    logits = 4 * config.vocab_size  # sampling sorts a copy, with its order
    chunks = max(halves) + _ITEM * (4 * chunk * config.hidden_size + kept + streams + logits)
    if config.tower is None or not embedding:
        return chunks
    return max(chunks, _tower_bytes(config.tower)) + kept_picture_bytes(config.tower)


def _tower_bytes(tower: TowerSpec) -> int:
    """Bytes for the largest picture in a vision tower.

    They are a patch's input, norm and output, queries, keys and values as they come, in their order and turned, and
    the widest matrix in f32. The memory of an MLP is less: it takes some patches at a time.
    """
    cells = tower.rows_at_once
    widest = tower.width * max(tower.intermediate, 3 * tower.width)
    reading = cells * tower.cell * 14 * tower.width
    return _ITEM * (reading + tower.rows_of_picture * tower.row + widest)


def kept_picture_bytes(tower: TowerSpec) -> int:
    """Bytes of rows of pictures that a stage keeps.

    A step may hold the end of a large picture, some small ones, and the beginning of another large one: were any of
    them forgotten for the others, it could never be computed.
    """
    return max(_KEPT_PICTURE_BYTES, 3 * _ITEM * tower.rows_of_picture * tower.row)


def _ngram_bytes(ngrams: NgramSpec, chunk: int) -> int:
    """Bytes for a chunk's rows of the table, as stored and in f32, and what is made of them for each stream."""
    return _ITEM * chunk * (2 * ngrams.size + 4 * ngrams.streams.width)


def _input_bytes(inputs: LayerInputSpec, chunk: int) -> int:
    """Bytes for a chunk's rows of the table, as stored and in f32, and what is made of those of a layer."""
    return _ITEM * chunk * (2 * inputs.head_size + 6 * inputs.size)


def _mixer_bytes(mixer: Mixer, chunk: int, context: int) -> int:
    """Bytes for a chunk in the mixer, beside its input, norm and output."""
    match mixer:
        case AttentionSpec():
            # Queries, keys and values, the result, the cached keys and values in the compute dtype,
            # a mask, and scores if torch computes them explicitly.
            nbytes = _ITEM * chunk * 2 * (mixer.q_size + mixer.kv_size + mixer.gate_rows)
            nbytes += (_ITEM * 2 * mixer.kv_size + _MASK * chunk) * context
            if (index := mixer.index) is not None:
                # The keys of all blocks, scores of some queries, which blocks and tokens are seen, and chosen rows.
                blocks, some = -(-context // index.block), min(INDEXED_QUERIES, chunk)
                nbytes += _ITEM * blocks * (index.head_dim + some * (index.heads + 2))
                nbytes += chunk * (2 * blocks + 3 * context)
                nbytes += _ITEM * 4 * mixer.kv_size * min(context, index.dense_tokens)
            if mixer.holds_scores:
                nbytes += _SCORE * mixer.heads * min(CAPPED_QUERIES, chunk) * context
            return nbytes
        case LatentSpec():
            # Queries, absorbed queries and their results, and the cached rows in the compute dtype, some heads'
            # keys and values of them, their scores and a mask.
            wide = mixer.q_size + mixer.heads * (mixer.row + mixer.rank + mixer.value_dim)
            expanded = HEADS_AT_ONCE * (mixer.query_dim + mixer.value_dim)
            scores = HEADS_AT_ONCE * _SCORE * chunk
            nbytes = _ITEM * (chunk * wide + (mixer.row + expanded) * context)
            nbytes += (scores + _MASK * chunk) * context
            return (
                nbytes + _chosen_bytes(mixer, chunk) + _indexer_bytes(mixer.indexer, chunk, context)
            )
        case BesideSpec(attention=attention, mamba=mamba):
            # One after the other; what both read and give is kept.
            both = _mixer_bytes(attention, chunk, context), _mixer_bytes(mamba, chunk, context)
            return sum(both)
        case PooledSpec():
            return _ITEM * _pooled_numbers(mixer, chunk, context)
        case MambaSpec():
            # As of a delta net, and B and C of each head where torch computes.
            wide = 2 * (mixer.channels + 2 * mixer.values_size)
            return _ITEM * chunk * (wide + 2 * mixer.heads * mixer.state_size)
        case ConvolutionSpec():
            # What goes in, the product of two thirds of it with those before, and the result.
            return _ITEM * chunk * 6 * mixer.size
        case DeltaNetSpec() | ChannelDeltaSpec():
            # What goes in, as it comes and after the convolution, and the result. Torch's chunks of 64
            # tokens take less than as much again.
            return 2 * _ITEM * chunk * (mixer.channels + 2 * mixer.values_size + mixer.decays_size)


def _pooled_numbers(mixer: PooledSpec, chunk: int, context: int) -> int:
    """Numbers for a chunk in attention to pools.

    They are queries as they come, turned and their results, what pools are made of, all pools, and of some queries
    their scores, and those of the heads that choose.
    """
    pools = 0 if mixer.pooler is None else context // mixer.pooler.rate
    made = sum(2 * one.inputs for one in mixer.poolers)
    width = sum(one.size for one in mixer.poolers)
    index = 0 if mixer.index is None else mixer.index.heads
    wide = 5 * mixer.q_size + 6 * made + (0 if mixer.index is None else 2 * mixer.index.q_size)
    some = min(POOL_QUERIES, chunk)
    seen = pools + mixer.window + some
    return chunk * wide + seen * (
        2 * (width + mixer.head_dim) + some * (3 * mixer.heads + index + 4)
    )


def _chosen_bytes(mixer: LatentSpec, chunk: int) -> int:
    """Bytes of the rows that a token sees if these are chosen, and of the positions for each token."""
    index = 0 if mixer.indexer is None else mixer.indexer.head_dim
    return (mixer.sees or 0) * (_ITEM * (mixer.row + index) + _POSITION * chunk)


def _indexer_bytes(indexer: IndexerSpec | None, chunk: int, context: int) -> int:
    """Bytes for a chunk in an indexer: what it makes of the tokens, the cached keys, and some queries' scores.

    Scores are those of some heads, their sum, and what their order is found with.
    """
    if indexer is None:
        return 0
    scores = min(INDEX_QUERIES, chunk) * (HEADS_AT_ONCE + 6)
    return _ITEM * (2 * chunk * indexer.row + (indexer.head_dim + scores) * context)


def _feed_forward_bytes(feed_forward: FeedForward, chunk: int) -> int:
    """Bytes for a chunk in the feed-forward: gate, up and their product."""
    match feed_forward:
        case DenseSpec():
            return _ITEM * chunk * 3 * feed_forward.down.width
        case MoeSpec(experts=experts):
            pairs, size = chunk * experts.routing.per_token, experts.intermediate_size
            widest = max(pairs * size, chunk * experts.shared_size)
            read = experts.narrow_size or feed_forward.hidden_size
            scaled = _ITEM * read if experts.routing.scales_input else 0
            each = pair_bytes(read, size) + scaled
            # Narrow experts: what is made of the tokens, and the experts' sum.
            around = _ITEM * chunk * 2 * experts.narrow_size
            return around + max(_ITEM * 3 * widest, pairs * each)
        case ParallelSpec(dense=dense, moe=moe):  # one after the other; the norms of both are kept
            widest = max(_feed_forward_bytes(dense, chunk), _feed_forward_bytes(moe, chunk))
            return widest + _ITEM * chunk * 2 * moe.hidden_size


def pair_bytes(width: int, size: int) -> int:
    """Bytes for each pair of a token and an expert of this size, where kernels compute all experts at once.

    They are its packed input of `width` numbers, its gates and ups, in place of which its result is written, and their packed product.
    """
    packed = 3 * width // 2, 3 * size // 2  # records of 44 bytes for 32 numbers
    return max(packed[0] + 2 * _ITEM * size, _ITEM * width) + packed[1]
