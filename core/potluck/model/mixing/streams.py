"""Several residual streams in place of one, and how blocks read and write them (hyper-connections).

Hyper-connections (https://arxiv.org/abs/2409.19606) in the form that Qwen 4 has in `transformers`. With S
streams of D numbers, which are all the embedding at first, each block

    n = the norm of each stream, with weights of its own, (S·D,)
    w = sigmoid(U silu(V n / S)), (S·D,), where V has few rows
    x = mean over streams of w · n, (D,): the block's input
    stream s += 2 sigmoid(C n / S)_s · block(x)

and what the head sees is such an x of matrices of its own.

DeepSeek V4 and GLM-5.3 balance what goes from stream to stream (mHC, https://arxiv.org/abs/2512.24880). Each block

    n = x / rms(x), over all S·D numbers
    a, b, M = F n, of S, S and S·S numbers, each times a scale of its own, plus B
    x = Σ (sigmoid(a)_s + ε) stream s, (D,): the block's input
    stream s ← Σ C_rs stream r + 2 sigmoid(b)_s · block(norm(x))

where C is softmax(M), each of a row of M, plus ε, whose columns and rows are divided by their sums in turn until all
sums are nearly one. The head sees such an x of numbers of its own (DeepSeek), or the mean of the streams (GLM).
"""

from dataclasses import dataclass

from potluck.model.common_fields import read_norm_eps
from potluck.model.families.facts import StreamsKind
from potluck.model.fields import Fields
from potluck.model.limits import MAX_HIDDEN, MAX_RANK, MAX_STREAMS
from potluck.model.projection import Projection
from potluck.model.quantized import Shape

_INJECTION = "block_inject_weight"
_BALANCED = ("hc_attn", "hc_ffn")
_HEAD = "hc_head."
_SMALL = (f".{_INJECTION}.weight", *(f".{name}_fn" for name in _BALANCED), f".{_HEAD}hc_fn")
_MOST_ROUNDS = 100  # twenty are in use


def is_injection(name: str) -> bool:
    """Whether a tensor is a matrix of few rows that says how much each stream gives to a block, or gets of it."""
    return name.endswith(_SMALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How what goes from stream to stream is balanced."""

    rounds: int  # of dividing by the sums of columns and rows
    eps: float
    norm_eps: float
    head_averages: bool  # what the head sees is the mean of the streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The residual streams of a model."""

    count: int
    hidden_size: int  # numbers of one stream
    rank: int = 0  # rows of V, unless they are balanced
    balance: Balance | None = None  # None: they are as in Qwen 4

    @property
    def width(self) -> int:
        """Numbers of all streams of a token, one stream after the other."""
        return self.count * self.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMixSpec:
    """How one block reads all streams, and writes to them."""

    streams: Streams
    name: str  # what files call it, without the layer's prefix
    injects: bool = True  # whether there is a C: the head writes nothing

    @property
    def norm(self) -> str:
        """The name of the norms' weights."""
        return f"{self.name}.hc_norm.weight"

    @property
    def down(self) -> Projection:
        """V."""
        streams = self.streams
        name = f"{self.name}.input_mix_weight_down"
        return Projection(parts=(name,), rows=(streams.rank,), width=streams.width)

    @property
    def up(self) -> Projection:
        """U."""
        streams = self.streams
        name = f"{self.name}.input_mix_weight_up"
        return Projection(parts=(name,), rows=(streams.width,), width=streams.rank)

    @property
    def injection(self) -> Projection | None:
        """C, of few rows; it stays f32."""
        if not self.injects:
            return None
        streams = self.streams
        name = f"{self.name}.{_INJECTION}"
        return Projection(parts=(name,), rows=(streams.count,), width=streams.width)

    @property
    def projections(self) -> tuple[Projection, ...]:
        matrices = (self.down, self.up, self.injection)
        return tuple(one for one in matrices if one is not None)

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of its tensors in files."""
        matrices = dict(tensor for one in self.projections for tensor in one.tensors())
        return {self.norm: (self.streams.width,), **matrices}


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedMixSpec:
    """How one block reads all balanced streams, and writes to them; or what the head reads of them."""

    streams: Streams
    name: str  # begins the names in files, without the layer's prefix
    is_head: bool = False  # it reads alone

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of F for a, for b, and for M."""
        count = self.streams.count
        return (count,) if self.is_head else (count, count, count * count)

    @property
    def names(self) -> tuple[str, str, str]:
        """Of F, of B, and of the scales."""
        return f"{self.name}fn", f"{self.name}base", f"{self.name}scale"

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of its tensors in files."""
        rows, (matrix, base, scale) = sum(self.rows), self.names
        return {matrix: (rows, self.streams.width), base: (rows,), scale: (len(self.rows),)}


def final_balanced_mix(streams: Streams, base: str) -> BalancedMixSpec | None:
    """What makes the input of the final norm of balanced streams; None: it is their mean."""
    assert streams.balance is not None
    if streams.balance.head_averages:
        return None
    return BalancedMixSpec(streams=streams, name=f"{base}{_HEAD}hc_", is_head=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStreams:
    """How the two blocks of a layer read and write the streams. Unless these are balanced, it stands in place of norms."""

    mixer: StreamMixSpec | BalancedMixSpec
    feed_forward: StreamMixSpec | BalancedMixSpec

    @classmethod
    def of(cls, streams: Streams) -> "LayerStreams":
        if streams.balance is not None:
            first, second = (BalancedMixSpec(streams=streams, name=f"{n}_") for n in _BALANCED)
            return cls(mixer=first, feed_forward=second)
        return cls(
            mixer=StreamMixSpec(streams=streams, name="attn_hyper_connection"),
            feed_forward=StreamMixSpec(streams=streams, name="mlp_hyper_connection"),
        )

    @property
    def width(self) -> int:
        return self.mixer.streams.width

    @property
    def blocks(self) -> tuple[StreamMixSpec | BalancedMixSpec, StreamMixSpec | BalancedMixSpec]:
        return self.mixer, self.feed_forward


def read_streams(fields: Fields, kind: StreamsKind, hidden: int) -> Streams:
    """The streams of a model that has several."""
    most = min(MAX_STREAMS, MAX_HIDDEN // hidden)
    if kind == "gated":
        rank = fields.integer("hc_lowrank", 1, MAX_RANK)
        return Streams(count=fields.integer("hc_count", 2, most), rank=rank, hidden_size=hidden)
    balance = Balance(
        rounds=fields.integer("hc_sinkhorn_iters", 1, _MOST_ROUNDS),
        eps=fields.number("hc_eps", 0.0, 1.0),
        norm_eps=read_norm_eps(fields),
        head_averages=kind == "averaged",
    )
    return Streams(count=fields.integer("hc_mult", 1, most), hidden_size=hidden, balance=balance)
