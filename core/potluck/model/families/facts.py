"""The facts in which families of models differ, and the types of their values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, get_args

from potluck.model.fields import Fields
from potluck.model.routing import ScoreFunction

T = TypeVar("T")
U = TypeVar("U")

GateFunction = Literal["silu", "gelu_pytorch_tanh", "sigmoid", "softplus", "exponential"]
"""A function of gates, whose results are multiplied with the ups, or with the result of a mixer.

The last one is no gate of any model: it is for what is computed like one.
"""


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """g · sigmoid(alpha g) · (u + more), with g = min(gate, limit) and u = up between -limit and limit.

    gpt-oss has it with one more (https://arxiv.org/abs/2508.10925, section 2.2), DeepSeek V4 with none.
    """

    alpha: float
    limit: float
    has_pairs: bool  # whether gates and ups alternate, and do not stand gates before ups
    more: float = 1.0

    def __str__(self) -> str:
        pairs = "_pairs" if self.has_pairs else ""
        more = "" if self.more == 1.0 else f"_{self.more:g}"
        return f"swiglu_{self.alpha:g}_{self.limit:g}{more}{pairs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGate:
    """Gates of what attention gives, which a matrix of their own makes of its input."""

    matrix: str  # below the attention
    function: GateFunction
    of_heads: bool = False  # a head has one gate, not one for each of its numbers


@dataclass(frozen=True, slots=True)
class ClampedSilu:
    """min(silu(gate), limit) · u, with u = up between -limit and limit. Step-3.5 has it in its last layers."""

    limit: float

    def __str__(self) -> str:
        return f"silu_to_{self.limit:g}"


UngatedFunction = Literal["relu2", "gelu_alone", "xielu"]
"""A function of ups, where there are no gates.

relu2: max(x, 0)². gelu_alone: gelu_pytorch_tanh. xielu (https://arxiv.org/abs/2411.13010), with two numbers p and n that a layer has learned:
p x² + x / 2 above 0, and n (exp(x) - 1 - x) + x / 2 below.
"""

UNGATED: frozenset[object] = frozenset(get_args(UngatedFunction))

Activation = GateFunction | ClampedSwiglu | ClampedSilu | UngatedFunction
"""What a feed-forward makes of a gate and an up, or of an up alone."""


def gate_up_rows(activation: Activation, size: int) -> int:
    """Rows of the matrix of gates and ups of an MLP of this size, or of that of ups alone."""
    return size if activation in UNGATED else 2 * size


def size_of_rows(activation: Activation, rows: int) -> int:
    """The size of an MLP whose matrix of gates and ups, or of ups alone, has so many rows."""
    return rows if activation in UNGATED else rows // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms(Generic[T]):
    """One value for each place of a layer where a norm can stand; None: there is no norm.

    For a family the values are the norms' names in files, for a layer the norms, for a kernel their
    weights. The order of the fields is the order in which a token passes them.
    """

    before_mixer: T | None = None
    after_mixer: T | None = None
    before_mlp: T | None = None
    after_mlp: T | None = None

    @property
    def present(self) -> tuple[T, ...]:
        places = (self.before_mixer, self.after_mixer, self.before_mlp, self.after_mlp)
        return tuple(one for one in places if one is not None)

    def map(self, make: Callable[[T], U]) -> "LayerNorms[U]":
        """The same places, each with the result of `make` for its value."""

        def one(value: T | None) -> U | None:
            return None if value is None else make(value)

        return LayerNorms(
            before_mixer=one(self.before_mixer),
            after_mixer=one(self.after_mixer),
            before_mlp=one(self.before_mlp),
            after_mlp=one(self.after_mlp),
        )

    @property
    def of_mixer(self) -> "LayerNorms[T]":
        """Those around the mixer alone."""
        return LayerNorms(before_mixer=self.before_mixer, after_mixer=self.after_mixer)

    @property
    def of_mlp(self) -> "LayerNorms[T]":
        """Those around the feed-forward alone."""
        return LayerNorms(before_mlp=self.before_mlp, after_mlp=self.after_mlp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelNorms(Generic[T]):
    """One value for each norm around an MLP and experts that stand side by side (Gemma 4)."""

    before_dense: T
    after_dense: T
    before_moe: T
    after_moe: T

    @property
    def present(self) -> tuple[T, ...]:
        return self.before_dense, self.after_dense, self.before_moe, self.after_moe

    def map(self, make: Callable[[T], U]) -> "ParallelNorms[U]":
        """The same places, each with the result of `make` for its value."""
        before_dense, after_dense, before_moe, after_moe = map(make, self.present)
        return ParallelNorms(
            before_dense=before_dense,
            after_dense=after_dense,
            before_moe=before_moe,
            after_moe=after_moe,
        )


# Files name the norm before the MLP after the part before it: `post_attention_layernorm`.
PRE_NORMS = LayerNorms(before_mixer="input_layernorm", before_mlp="post_attention_layernorm")
POST_NORMS = LayerNorms(
    after_mixer="post_attention_layernorm", after_mlp="post_feedforward_layernorm"
)
GLM_NORMS = LayerNorms(
    before_mixer="input_layernorm",
    after_mixer="post_self_attn_layernorm",
    before_mlp="post_attention_layernorm",
    after_mlp="post_mlp_layernorm",
)
SANDWICH_NORMS = LayerNorms(
    before_mixer="input_layernorm",
    after_mixer="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)

NormKind = Literal["root mean square", "layer", "biased layer"]
"""Norms of hidden states: x / sqrt(mean(x²) + eps) · weight, or the same of x - mean(x) (LayerNorm), plus a bias or not."""

QkNormKind = Literal["head", "projection"]
"""RMSNorm of queries and keys before rope: over each head, or over all heads together."""

WindowPattern = Literal["none", "all", "last", "pattern", "without rope", "with rope"]
"""Which layers have a window, if `layer_types` does not say it.

`last`: from `max_window_layers` on; `pattern`: all but one of each `sliding_window_pattern`;
`without rope`: those of `no_rope_layers`; `with rope`: the others.
"""

RopeLayers = Literal["all", "none", "listed", "windowed", "windowed or dense", "named"]
"""Which layers have a rope: `listed` by `no_rope_layers`; `windowed`: those with a window, or all
where `sliding_window` is null; `windowed or dense`: those too without experts, if
`prefix_dense_sliding_window_pattern` is 1; `named`: all where `position_embedding_type` is rope."""


StreamsKind = Literal["gated", "balanced", "averaged"]
"""How blocks read and write several residual streams (`model/mixing/streams.py`); the last two are the same, but for what
the head sees."""

IndexerRope = Literal["halves", "pairs", "pools"]
"""What rope turns together in the heads of an indexer, as files have them; `pools`: nothing, and it chooses pools of
tokens."""

DeltaNetNames = Literal["joined", "split"]
"""How files hold the inputs of a delta net: all of a key head side by side in one matrix, or in a matrix for each
purpose."""

ExpertLayers = Literal["all", "stepped", "after dense", "between", "listed", "named"]
"""Which layers have experts: `stepped` by `decoder_sparse_step` and `mlp_only_layers`; `after dense`: all but
the first `first_k_dense_replace`; `between` `moe_layer_start_index` and `moe_layer_end_index`, each
`moe_layer_interval`-th; `listed` by `moe_layers`, or each `interleave_moe_layer_step`-th; `named`: those that `layer_types` calls moe."""


Stacking = Literal["rows", "columns", "either"]
"""All experts' matrices in one tensor: each (out, in), or each (in, out), or as its shape says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """The names that a family has for the tensors and fields of its MoE."""

    block: str  # below the layer; the router is its `gate`; "": the layer itself
    gate: str = "gate_proj"  # unless the activation has no gates
    up: str = "up_proj"
    down: str = "down_proj"
    intermediate: str  # the field with the size of one expert
    normalise: bool | str  # whether the factors of the chosen experts are made to add up to one
    layers: ExpertLayers = "all"
    switch: str | None = None  # the field that must be true for there to be experts
    may_be_none: bool = False  # a count of 0 says that the model has none
    chosen: str = "num_experts_per_tok"  # the field with how many are chosen
    router: str = "gate"  # below the block
    router_bias: bool = False  # the router's products have a bias
    expert_bias: bool = False  # the experts' matrices have biases
    stacked: Stacking | None = None  # how files stack the experts of a layer; None: they do not
    fused: str | None = None  # the name of gates and ups in one matrix, unless it is a GGUF file's
    # The names of stacks: their own → ours.
    stack_names: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    stacked_gates: str | None = None  # that of the stack of all gates before all ups, cut in two
    router_norm: str | None = None  # the weights of a norm before it, also divided by the root of D
    expert_scales: str | None = None  # what multiplies the factors of the chosen ones at last
    norm_after: str | None = None  # the norm of what they give, which MLPs of other layers have not
    # The layers also have an MLP, which stands beside them.
    beside: ParallelNorms[str] | None = None
    function: ScoreFunction = "softmax"
    jitter: str | None = None  # the field with what a sparse mixer takes for as good as the best
    function_field: str | None = None  # or the field that says it; those of a softmax add up to one
    id_table: str | None = None  # the name, below the block, of the experts of each token's id
    scales_input: bool = False  # factors multiply what experts read, not what they give
    bias: str | None = None  # the name, below the block, of what is added to choose, and only then
    bias_beside: bool = False  # that name is below the layer
    biases_products: bool = False  # it is added to products, not to probabilities
    groups: bool = False  # `n_group` and `topk_group` count
    group_method: str | None = None  # the field that is "greedy" where they do not
    best_in_group: int = 2  # a group is as good as so many of its best together
    scale: str | None = None  # the field with what all factors are multiplied by
    shared: str | None = None  # the name, below the block, of the expert that all tokens go through
    shared_size: str | None = None  # the field with its size
    shared_count: str | None = None  # or the field with its size in sizes of one expert
    shared_average: str | None = None  # the field that is "average" where half of both is taken
    # of its gates, ups and down, if they are others than of experts; or of gates and ups in one, and of down
    shared_names: tuple[str, ...] | None = None
    shared_gate: str | None = None  # the name of the matrix of one row that weighs it
    # Experts read and write fewer numbers: the field that says how many, and the matrices to these and back.
    narrow: tuple[str, str, str] | None = None

    def name(self, part: str) -> str:
        """The name of a part below the layer."""
        return f"{self.block}.{part}" if self.block else part


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of a family. Where a fact may be a `str`, it names the field of `config.json` to read."""

    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    field_names: Mapping[str, str] = field(default_factory=dict[str, str])  # its own → ours
    # What a file says in words of its own, in those that are read here; over its defaults.
    words: Callable[[Fields], Mapping[str, object]] | None = None

    norms: LayerNorms[str] = PRE_NORMS
    norm_kind: NormKind = "root mean square"
    norm_switch: str | None = (
        None  # the field that is there where they are root mean squares after all
    )
    side_by_side: bool = False  # mixer and feed-forward read the same norm, and both are added
    unit_offset: bool = False  # norms multiply by 1 + weight
    final_norm_is_whole: bool = False  # but the final one
    after_norm_eps: str | None = None  # the field with what the norms after mixer and MLP add
    embedding_norm: bool = False  # embeddings have a norm without weights
    qk_norm: QkNormKind | None = None
    qk_norm_switch: str | None = None  # the field that must be true for it
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_norm_after_rope: bool = False
    # It has no weights, and only layers with rope have it; or all.
    qk_norm_is_plain: bool | Literal["everywhere"] = False
    value_norm: bool = False  # each head's values have a norm without weights too
    layer_scale: str | None = None  # the number that a layer's result is multiplied by

    qkv_bias: bool | str = False  # on q_proj, k_proj and v_proj
    output_bias: bool | str = False  # on o_proj
    attention_gate: bool | str = False  # the result of attention is gated, by what q_proj has too
    output_gate: OutputGate | None = None  # it is gated by a matrix of its own
    gate_kind: str | None = None  # the field that says whether it is one for each number
    mlp_bias: bool | str = False  # on gate_proj, up_proj and down_proj
    mlp_block: str = "mlp"  # what files call the MLP
    mlp_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    mlp_names: tuple[str, str] | None = None  # of gates and ups in one, and of down
    mlp_size: str = "intermediate_size"  # the field with its size
    wide_mlp: str | None = (
        None  # the field that is true where it is twice that of layers that take keys
    )
    mlp_adjusted: str | None = None  # the field that is true where the size follows from it
    fused: bool = False  # files have qkv_proj and gate_up_proj
    fused_mlp: bool = False  # files have gate_up_proj, but no qkv_proj
    activation: str = "hidden_act"
    activation_names: Mapping[str, str] = field(default_factory=dict[str, str])  # its own → ours
    head_bias: bool | str = False  # on lm_head
    # Experts have it, by `swiglu_alpha` and `swiglu_limit`; or MLPs too; or it is silu with `swiglu_limit` alone, in both.
    clamped_swiglu: bool | Literal["everywhere", "plain"] = False
    # The fields that list for each layer what limits the products of its experts, and of the one that all tokens go
    # through; 0 or null: nothing.
    expert_limits: tuple[str, str] | None = None
    experts: ExpertFacts | None = None

    halves: bool = False  # a layer is a mixer or a feed-forward alone: see `halves.py`
    attention_block: str = "self_attn"  # what files call attention
    attention_output: str = "o_proj"  # and its last matrix

    # Layers that `layer_types` calls `linear_attention`, or all but each n-th, are delta nets.
    delta_net: DeltaNetNames | None = None
    # Those that `layer_types` or `linear_attn_config` say are delta nets with a decay for each channel; bounded by a field.
    channel_delta: Literal["plain", "bounded"] | None = None
    # What files call the state space of those that `layer_types` calls mamba.
    mamba: str | None = None
    beside: bool = False  # each layer has attention beside the state space
    multipliers: bool = False  # activations are multiplied by numbers: see `multipliers.py`
    convolutions: bool = False  # layers that `layer_types` calls conv are short convolutions
    block_index: bool = False  # attention has an indexer that chooses blocks of tokens
    # Layers that `layer_types` calls so have an indexer that chooses blocks for each head of keys.
    head_index: str | None = None
    pooled: bool = False  # attention sees the last tokens, and pools of all before
    latent: bool = False  # attention is latent (MLA)
    latent_unturned: bool = False  # it has no rope
    latent_norm_eps: bool = False  # the norms of latents add what all norms do
    latent_bias: bool | str = False  # on q_a_proj, kv_a_proj_with_mqa and o_proj
    indexer: IndexerRope | None = None  # latent attention sees the tokens that an indexer chooses

    windows: WindowPattern = "none"
    # The field with how many tokens make a chunk: a window then begins with the token's chunk. None: windows slide.
    chunk_size: str | None = None
    layer_types: bool = False  # whether the field `layer_types` counts
    window_switch: str | None = None  # the field that must be true for `sliding_window` to count
    ends_full: bool = False  # the last layer has no window

    # Heads may differ from layer to layer; the fields that list how many there are, of queries and of keys.
    layer_heads: str | None = None
    layer_kv_heads: str | None = None
    value_dim: str | None = (
        None  # the field with the numbers of a head's value, which are fewer than those of its key
    )
    value_scale: str | None = None  # values are multiplied by this

    # Layers without a window have sizes of their own; the fields that say them.
    full_head_dim: str | None = None
    full_kv_heads: str | None = None  # counts where the next one is true
    keys_are_values: str | None = None  # the field that must be true for them to have no v_proj

    layer_inputs: str | None = None  # the field with the size of embeddings of each layer
    shared_keys: str | None = (
        None  # the field with how many of the last layers take keys of earlier ones
    )

    rope_layers: RopeLayers = "all"
    local_theta: str | None = None  # the field with the theta of layers with a window; never scaled
    layer_thetas: str | None = (
        None  # the field that lists the theta of each layer; 0: it has no rope
    )
    # The field that must be true for `attn_scale` and `floor_scale` to scale the queries of layers without rope.
    unturned_scale: str | None = None
    # Each head has a score that no token has, and that takes its part of the softmax; or each of layers with a window.
    sinks: bool | Literal["windowed"] = False
    sinks_name: str = "sinks"
    partial_rotary: bool = False  # `partial_rotary_factor` counts
    paired_rope: bool | str = False  # rope turns neighbours in a head, (2i, 2i + 1), not halves
    scaling_names: Mapping[str, str] = field(default_factory=dict[str, str])  # its own name → ours

    query_scalar: str | None = None  # scores are divided by the root of this, not of head_dim
    attention_multiplier: str | float | None = None  # scores are multiplied by this instead
    attention_softcap: str | None = None
    logits_softcap: str | None = None
    root_embedding: bool | str = False  # embeddings are multiplied by the root of hidden_size
    embedding_multiplier: str | None = None
    residual_multiplier: str | None = None
    logits_divisor: str | None = None
    logits_multiplier: str | None = None

    # There are several residual streams. Gated ones stand in place of all norms but those inside.
    streams: StreamsKind | None = None

    # Fields that must be absent, false or 0, and what the model would need.
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])

    exceeds_f16: bool = False  # hidden states may exceed 65,504 (transformers issue 36822)
