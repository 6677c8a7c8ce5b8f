"""Several residual streams in place of one, and how blocks read and write them (hyper-connections).

Hyper-connections (https://arxiv.org/abs/2409.19606) in the form that Qwen 4 has in `transformers`. With S
streams of D numbers, which are all the embedding at first, each block

    n = the norm of each stream, with weights of its own, (S·D,)
    w = sigmoid(U silu(V n / S)), (S·D,), where V has few rows
    x = mean over streams of w · n, (D,): the block's input
    stream s += 2 sigmoid(C n / S)_s · block(x)

and what the head sees is such an x of matrices of its own.
"""

from dataclasses import dataclass

from potluck.model.fields import Fields
from potluck.model.limits import MAX_HIDDEN, MAX_RANK, MAX_STREAMS
from potluck.model.projection import Projection
from potluck.model.quantized import Shape

_INJECTION = "block_inject_weight"


def is_injection(name: str) -> bool:
    """Whether a tensor is the matrix that says how much of a block's result each stream gets."""
    return name.endswith(f".{_INJECTION}.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The residual streams of a model."""

    count: int
    rank: int  # rows of V
    hidden_size: int  # numbers of one stream

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
class LayerStreams:
    """How the two blocks of a layer read and write the streams; this stands in place of norms."""

    mixer: StreamMixSpec
    feed_forward: StreamMixSpec

    @classmethod
    def of(cls, streams: Streams) -> "LayerStreams":
        return cls(
            mixer=StreamMixSpec(streams=streams, name="attn_hyper_connection"),
            feed_forward=StreamMixSpec(streams=streams, name="mlp_hyper_connection"),
        )

    @property
    def width(self) -> int:
        return self.mixer.streams.width

    @property
    def blocks(self) -> tuple[StreamMixSpec, StreamMixSpec]:
        return self.mixer, self.feed_forward


def read_streams(fields: Fields, hidden: int) -> Streams:
    """The streams of a model that has several."""
    count = fields.integer("hc_count", 2, min(MAX_STREAMS, MAX_HIDDEN // hidden))
    return Streams(count=count, rank=fields.integer("hc_lowrank", 1, MAX_RANK), hidden_size=hidden)
