"""What the part of a layer is made of that mixes a token with those before it."""

from dataclasses import dataclass, replace

from potluck.model.block_index import BlockIndexSpec
from potluck.model.caches import (
    CacheSizes,
    CacheSpec,
    ChunkCache,
    FullCache,
    KeysAndValues,
    WindowCache,
)
from potluck.model.channel_delta import ChannelDeltaSpec
from potluck.model.delta_net import DeltaNetSpec
from potluck.model.families.facts import QkNormKind
from potluck.model.latent import LatentSpec
from potluck.model.mamba import MambaSpec
from potluck.model.pooled import PooledSpec
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention over the keys and values of all tokens so far, or of the last `window` ones.

    In chunks, a window does not slide: it begins at a multiple of its size.
    """

    hidden_size: int
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
    is_fused: bool = False  # files have queries, keys and values in one matrix
    has_gate: bool = False  # each head's query has a gate of its result behind it
    index: BlockIndexSpec | None = None  # chooses which tokens a query sees; None: it sees all

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
    def qkv(self) -> Projection:
        queries = self.q_size + self.gate_size
        parts, rows = ("q_proj", "k_proj", "v_proj"), (queries, self.kv_size, self.kv_size)
        if self.keys_are_values:
            parts, rows = parts[:2], rows[:2]
        if self.is_fused:
            parts, rows = ("qkv_proj",), (sum(rows),)
        return Projection(
            parts=tuple(f"self_attn.{part}" for part in parts),
            rows=rows,
            width=self.hidden_size,
            has_bias=self.qkv_bias,
        )

    @property
    def output(self) -> Projection:
        return Projection(
            parts=("self_attn.o_proj",),
            rows=(self.hidden_size,),
            width=self.q_size,
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
        return replace(self, rope=None, rotary_dim=0)

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
        return "self_attn.sinks"

    @property
    def qk_norm_sizes(self) -> tuple[int, ...]:
        """Numbers that the norms of queries and of keys multiply with."""
        match self.qk_norm:
            case None:
                return ()
            case "head":
                return self.head_dim, self.head_dim
            case "projection":
                return self.q_size, self.kv_size

    @property
    def qk_norms(self) -> dict[str, Shape]:
        """The weights of the norms of queries and of keys."""
        sizes = () if self.qk_norm_is_plain else self.qk_norm_sizes
        names = (f"self_attn.{name}.weight" for name in self.qk_norm_names)
        return {name: (size,) for name, size in zip(names, sizes, strict=False)}

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """Its tensors with rows that rope turns, for files that have these in pairs."""
        pairs = PairedRows(head=self.head_dim, count=self.rotary_dim)
        names = [f"self_attn.{part}_proj.{kind}" for part in "qk" for kind in ("weight", "bias")]
        if self.qk_norm == "head":
            names += self.qk_norms
        return dict.fromkeys(names, pairs)


Mixer = AttentionSpec | LatentSpec | DeltaNetSpec | ChannelDeltaSpec | MambaSpec | PooledSpec
"""The part of a layer that mixes a token with those before it."""
