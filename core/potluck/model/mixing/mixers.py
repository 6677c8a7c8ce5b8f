"""What the part of a layer is made of that mixes a token with those before it."""

from dataclasses import dataclass, replace

from potluck.model.cache_rows import KeysAndValues
from potluck.model.caches import (
    CacheSizes,
    CacheSpec,
    ChunkCache,
    FullCache,
    RecurrentCache,
    RowsAndStateCache,
    WindowCache,
)
from potluck.model.families.facts import OutputGate, QkNormKind
from potluck.model.mixing.block_index import BlockIndexSpec, HeadIndexSpec
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.pooled import PooledSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows

WEIGHED = "qk_norm_has_weights"  # the field, which no file of the Hub has


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention over the keys and values of all tokens so far, or of the last `window` ones.

    In chunks, a window does not slide: it begins at a multiple of its size.
    """

    hidden_size: int
    block: str = "self_attn"  # what files call it
    output_name: str = "o_proj"
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # the first values of each head, which are rotated
    rope: int | None = None  # which of the model's distinct ropes rotates them; None: no rope
    window: int | None = None  # tokens that a query sees, itself among them; None: all
    in_chunks: bool = False  # a query sees those of its chunk of `window` tokens
    scale: float  # of the products of queries and keys
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    qk_norm: QkNormKind | None = None
    qk_norm_eps: float = 0.0
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_norm_after_rope: bool = False
    qk_norm_is_plain: bool = False  # without weights
    value_norm: bool = False  # each head's values are normed too, without weights
    keys_are_values: bool = False  # before their norms and rope: there is no matrix of values
    qkv_bias: bool = False
    output_bias: bool = False
    # Each head has a score beside those of the tokens, with a value of zero.
    has_sinks: bool = False
    sinks_name: str = "sinks"
    is_fused: bool = False  # files have queries, keys and values in one matrix
    has_gate: bool = False  # each head's query has a gate of its result behind it
    gate: OutputGate | None = None  # gates behind queries, keys and values
    value_numbers: int | None = None  # of a head's value, where it has fewer than its key
    value_scale: float = 1.0  # of values
    # Keys and values go along with the hidden states: those of which kind it gives to later layers, or takes of an
    # earlier one in place of its own.
    gives: int | None = None
    takes: int | None = None
    index: BlockIndexSpec | HeadIndexSpec | None = (
        None  # chooses which tokens a query sees; None: it sees all
    )

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def gate_size(self) -> int:
        """Numbers by whose sigmoids the result is multiplied; 0: there are none."""
        return self.q_size if self.has_gate else 0

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Numbers of a head's value."""
        return self.head_dim if self.value_numbers is None else self.value_numbers

    @property
    def values_size(self) -> int:
        """Numbers of all values of a token."""
        return self.kv_heads * self.value_dim

    @property
    def mixed_size(self) -> int:
        """Numbers of the result."""
        return self.heads * self.value_dim

    @property
    def gate_rows(self) -> int:
        """Numbers of `gate`."""
        if self.gate is None:
            return 0
        return self.heads if self.gate.of_heads else self.mixed_size

    @property
    def qkv(self) -> Projection:
        """Queries, keys and values, and gates if they have a matrix of their own."""
        queries = self.q_size + self.gate_size
        parts, rows = ("q_proj", "k_proj", "v_proj"), (queries, self.kv_size, self.values_size)
        if self.keys_are_values:
            parts, rows = parts[:2], rows[:2]
        if self.takes is not None:
            parts, rows = parts[:1], rows[:1]
        if self.is_fused:
            parts, rows = ("qkv_proj",), (sum(rows),)
        if self.gate is not None:
            parts, rows = (*parts, self.gate.matrix), (*rows, self.gate_rows)
        return Projection(
            parts=tuple(f"{self.block}.{part}" for part in parts),
            rows=rows,
            width=self.hidden_size,
            has_bias=self.qkv_bias,
        )

    @property
    def output(self) -> Projection:
        return Projection(
            parts=(f"{self.block}.{self.output_name}",),
            rows=(self.hidden_size,),
            width=self.mixed_size,
            has_bias=self.output_bias,
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        index = () if self.index is None else (self.index.input,)
        return self.qkv, *index, self.output

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer."""
        heads, size = self.kv_heads, self.head_dim
        index = 0 if self.index is None else self.index.head_dim
        row = KeysAndValues(heads=heads, size=size, number_bytes=sizes.number_bytes, index=index)
        if self.window is None:
            return FullCache(row=row)
        kind = ChunkCache if self.in_chunks else WindowCache
        return kind(row=row, window=self.window, chunk=sizes.chunk, slack=sizes.slack)

    @property
    def kind(self) -> "AttentionSpec":
        """This attention as far as its cost depends on it. Rope costs next to nothing."""
        index = self.index
        if isinstance(index, BlockIndexSpec):
            index = replace(index, is_split=False)
        return replace(self, rope=None, rotary_dim=0, index=index)

    @property
    def holds_scores(self) -> bool:
        """Whether torch holds scores in memory, because none of its own operators computes this."""
        return self.softcap is not None or self.has_sinks

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections."""
        sinks = {self.sinks: (self.heads,)} if self.has_sinks else {}
        index = {} if self.index is None else self.index.small_tensors
        return self.qk_norms | sinks | index

    @property
    def sinks(self) -> str:
        """The name of the sinks' tensor."""
        return f"{self.block}.{self.sinks_name}"

    @property
    def qk_norm_sizes(self) -> tuple[int, ...]:
        """Numbers that the norms of queries and of keys multiply with."""
        match self.qk_norm:
            case None:
                return ()
            case "head":
                return (self.head_dim,) * (2 if self.takes is None else 1)
            case "projection":
                return self.q_size, self.kv_size

    @property
    def qk_norms(self) -> dict[str, Shape]:
        """The weights of the norms of queries and of keys."""
        sizes = () if self.qk_norm_is_plain else self.qk_norm_sizes
        names = (f"{self.block}.{name}.weight" for name in self.qk_norm_names)
        return {name: (size,) for name, size in zip(names, sizes, strict=False)}

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """Its tensors with rows that rope turns, for files that have these in pairs."""
        pairs = PairedRows(head=self.head_dim, count=self.rotary_dim)
        names = [f"{self.block}.{part}_proj.{kind}" for part in "qk" for kind in ("weight", "bias")]
        if self.qk_norm == "head":
            names += self.qk_norms
        return dict.fromkeys(names, pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideSpec:
    """Attention beside a state space: both read the layer's input, and what they give is added (Falcon-H1).

    https://arxiv.org/abs/2507.22448, section 2.1
    """

    attention: AttentionSpec
    mamba: MambaSpec

    @property
    def projections(self) -> tuple[Projection, ...]:
        return *self.attention.projections, *self.mamba.projections

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Their tensors beside the projections."""
        return self.attention.small_tensors | self.mamba.small_tensors

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """Those of attention."""
        return self.attention.rope_rows

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer: keys and values of all tokens, and the state."""
        rows, state = self.attention.cache(sizes), self.mamba.cache(sizes)
        assert isinstance(rows, FullCache)
        assert isinstance(state, RecurrentCache)
        return RowsAndStateCache(row=rows.row, tokens=rows, state=state)

    @property
    def kind(self) -> "BesideSpec":
        """Both as far as their cost depends on them."""
        return replace(self, attention=self.attention.kind)


Mixer = (
    AttentionSpec
    | LatentSpec
    | PooledSpec
    | DeltaNetSpec
    | ChannelDeltaSpec
    | MambaSpec
    | ConvolutionSpec
    | BesideSpec
)
"""The part of a layer that mixes a token with those before it."""
