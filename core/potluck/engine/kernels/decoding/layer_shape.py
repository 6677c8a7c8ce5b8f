"""What the kernel that takes a token through layers is written for: all that is not data."""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.decoding.block_calls import BlockShape
from potluck.engine.kernels.decoding.latent_layer import LatentShape
from potluck.engine.kernels.decoding.layer_inputs import InputShape
from potluck.engine.kernels.decoding.pooled_calls import PooledShape
from potluck.engine.kernels.decoding.streams_kernel import StreamShape
from potluck.engine.kernels.writing.ir_types import KIND_BF16, KIND_F16, KIND_F32
from potluck.model import formats
from potluck.model.families.facts import Activation, NormKind
from potluck.model.formats import BF16, F16, WeightFormat
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.mixing.mamba import MambaHeads
from potluck.model.mixing.short_convolution import ConvolutionSizes
from potluck.model.routing import Routing

FLOAT_KINDS: Mapping[WeightFormat, int] = {formats.F32: KIND_F32, BF16: KIND_BF16, F16: KIND_F16}


MixerShape = Heads | DeltaHeads | MambaHeads | ConvolutionSizes
"""The parameters of a mixer's kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape:
    """An MLP."""

    intermediate: int
    gate_up_format: WeightFormat
    down_format: WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceShape:
    """A state space beside attention, with its two matrices."""

    heads: MambaHeads
    input_format: WeightFormat
    output_format: WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowShape:
    """What experts read and write, if it is less than the hidden states, and the matrices to it and back."""

    size: int
    first_format: WeightFormat
    last_format: WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What a decoding kernel is written for. Layers of a mixer alone, or of a feed-forward alone, lack the other's formats."""

    hidden: int
    intermediate: int  # of the MLP, or of each expert
    mixer: MixerShape | None
    has_norms_before: bool  # attention and MLP
    has_norms_after: bool
    epsilon: float  # of the norms before and after attention and MLP
    after_epsilon: float | None = None  # of those after, if it is another
    multiplier: float  # of what is added to the hidden states; 1 with norms after
    activation: Activation
    # of the expert that all tokens go through, if it is another one
    shared_activation: Activation | None = None
    qkv_format: WeightFormat | None
    output_format: WeightFormat | None
    gate_up_format: WeightFormat | None
    down_format: WeightFormat | None
    space: SpaceShape | None = None  # a state space beside attention
    routing: Routing | None = None  # None: there is one MLP
    latent: LatentShape | None = None  # None: attention is not latent
    pooled: PooledShape | None = None  # of attention to pools
    blocks: BlockShape | None = None  # of an indexer that chooses blocks
    gates_format: WeightFormat | None = None  # of what makes a delta net's gates of few numbers
    shared: MlpShape | None = None  # of the expert that all tokens go through
    beside: MlpShape | None = None  # of the MLP beside experts, with norms of its own
    narrow: NarrowShape | None = None  # None: experts read and write hidden states
    has_expert_scales: bool = False
    carried: int = 0  # numbers that go along behind the hidden states
    inputs: InputShape | None = None  # of the layer's own embeddings
    streams: StreamShape | None = None  # None: the hidden states are one
    has_scale: bool = False  # the result is multiplied by a number
    norm_kind: NormKind = "root mean square"  # of norms before
    is_side_by_side: bool = False  # the MLP or experts read what the mixer reads
    sums_mixer: bool = False  # ranks hold parts of it: what it gives is summed before it is added
    sums_feed_forward: bool = False

    def __post_init__(self) -> None:
        assert self.multiplier == 1.0 or not self.has_norms_after
        assert self.routing is None or self.has_norms_before
        if self.norm_kind != "root mean square" or self.is_side_by_side:
            assert isinstance(self.mixer, Heads)
            assert self.has_norms_before
            assert not self.has_norms_after
        assert isinstance(self.mixer, Heads) or self.has_norms_before
        if self.space is not None:
            assert isinstance(self.mixer, Heads)
            assert self.latent is None
            assert self.has_norms_before
            assert not self.has_norms_after
            assert not self.is_side_by_side
        assert self.latent is None or not self.latent.has_indexer or self.has_norms_before
        if self.blocks is not None:
            assert self.blocks.heads.attention == self.mixer
            assert self.latent is None
            assert self.has_norms_before
            assert not self.is_side_by_side
        if self.pooled is not None:
            assert isinstance(self.mixer, Heads)
            assert self.latent is None
            assert self.has_norms_before
        assert self.narrow is None or (self.routing is not None and self.beside is None)
        if self.inputs is not None:
            assert self.carried >= self.hidden
        if self.streams is not None:
            assert self.streams.hidden == self.hidden
            assert self.mixer is not None
            assert self.has_feed_forward
            others = (self.has_norms_after, self.has_scale, self.is_side_by_side)
            assert not any((*others, self.carried, self.space, self.beside))
            assert self.multiplier == 1.0
        assert self.beside is None or (self.routing is not None and self.has_norms_after)

    @property
    def width(self) -> int:
        """Numbers of a token from layer to layer."""
        return self.hidden + self.carried if self.streams is None else self.streams.width

    @property
    def mlp(self) -> MlpShape:
        """The MLP, or an expert."""
        assert self.gate_up_format is not None
        assert self.down_format is not None
        return MlpShape(
            intermediate=self.intermediate,
            gate_up_format=self.gate_up_format,
            down_format=self.down_format,
        )

    @property
    def expert_width(self) -> int:
        """Numbers that the MLP, or an expert, reads and writes."""
        return self.hidden if self.narrow is None else self.narrow.size

    @property
    def has_feed_forward(self) -> bool:
        return self.gate_up_format is not None

    @property
    def widest(self) -> int:
        """The size of the largest MLP."""
        others = [mlp.intermediate for mlp in (self.shared, self.beside) if mlp is not None]
        return max(self.intermediate, *others, 0)

    @property
    def last_expert(self) -> int:
        """The index of the last of all experts: of the MLP beside them, if there is one."""
        return (0 if self.routing is None else self.routing.count) + (self.shared is not None)

    @property
    def adds_as_is(self) -> bool:
        """Whether the last product of attention and MLP is added to the hidden states as it is."""
        return not self.has_norms_after and self.multiplier == 1.0 and self.streams is None

    @property
    def rounds_to(self) -> int | None:
        """What hidden states are rounded to after each layer: the 16 bits that stages send; None: to nothing."""
        held = self.gate_up_format if self.qkv_format is None else self.qkv_format
        assert held is not None
        kind = FLOAT_KINDS.get(held)
        return None if kind == KIND_F32 else kind

    @property
    def attention(self) -> Heads:
        """The heads of attention, also of latent attention."""
        assert isinstance(self.mixer, Heads)
        return self.mixer

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that rope turns."""
        if self.pooled is not None:
            return self.pooled.heads.rotary_dim
        return self.mixer.rotary_dim if isinstance(self.mixer, Heads) else 0

    @property
    def qkv_rows(self) -> int:
        if self.mixer is None:
            return 0
        if isinstance(self.mixer, DeltaHeads) and self.gates_format is not None:
            return self.mixer.channels + self.mixer.value_size
        if not isinstance(self.mixer, Heads):
            return self.mixer.rows
        if self.pooled is not None:
            return self.pooled.rows
        return self.mixer.row_numbers if self.latent is None else self.latent.rows

    @property
    def mixed_rows(self) -> int:
        """Numbers of a token before its mixer."""
        if not isinstance(self.mixer, DeltaHeads):
            return self.qkv_rows
        return max(self.qkv_rows, self.mixer.rows)

    @property
    def attended(self) -> int:
        if self.mixer is None:
            return 0
        if not isinstance(self.mixer, Heads):
            return self.mixer.values_size
        if self.pooled is not None:
            return self.pooled.latents
        head = self.mixer.value_dim if self.latent is None else self.latent.heads.value_dim
        return self.mixer.heads * head
