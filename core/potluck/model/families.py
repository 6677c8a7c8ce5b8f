"""The table of model families, with the facts in which they differ.

A family is a row of values, or of names of `config.json` fields that hold the value. Nothing else
in the code asks for a model's family. `defaults` has the values that the family's configuration
class in `transformers` (`models/*/configuration_*.py`) takes for missing fields, if they differ
from the common ones: the weights were trained with them. A field that is `null` gets no
default there, nor here. Names of tensors are those of the files on the Hub.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from potluck.model.routing import ScoreFunction

T = TypeVar("T")
U = TypeVar("U")

Activation = Literal["silu", "gelu_pytorch_tanh"]
"""The function that a feed-forward applies to its gates."""


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


# Files name the norm before the MLP after the part before it: `post_attention_layernorm`.
PRE_NORMS = LayerNorms(before_mixer="input_layernorm", before_mlp="post_attention_layernorm")
POST_NORMS = LayerNorms(
    after_mixer="post_attention_layernorm", after_mlp="post_feedforward_layernorm"
)
SANDWICH_NORMS = LayerNorms(
    before_mixer="input_layernorm",
    after_mixer="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)

QkNormKind = Literal["head", "projection"]
"""RMSNorm of queries and keys before rope: over each head, or over all heads together."""

WindowPattern = Literal["none", "all", "last", "pattern", "without rope"]
"""Which layers have a sliding window, if `layer_types` does not say it.

`last`: from `max_window_layers` on; `pattern`: all but one of each `sliding_window_pattern`;
`without rope`: those of `no_rope_layers`.
"""

RopeLayers = Literal["all", "listed", "windowed"]
"""Which layers have a rope: `listed` by `no_rope_layers`; `windowed`: those with a window, or all
where `sliding_window` is null."""


ExpertLayers = Literal["all", "stepped", "after dense"]
"""Which layers have experts: `stepped` by `decoder_sparse_step` and `mlp_only_layers`; `after dense`: all but
the first `first_k_dense_replace`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """The names that a family has for the tensors and fields of its MoE."""

    block: str  # below the layer; the router is its `gate`
    gate: str
    up: str
    down: str
    intermediate: str  # the field with the size of one expert
    normalise: bool | str  # whether the factors of the chosen experts are made to add up to one
    layers: ExpertLayers = "all"
    router: str = "gate"  # below the block
    function: ScoreFunction = "softmax"
    bias: str | None = None  # the name, below the block, of what is added to choose, and only then
    groups: bool = False  # `n_group` and `topk_group` count
    scale: str | None = None  # the field with what all factors are multiplied by
    shared: str | None = None  # the name, below the block, of the expert that all tokens go through
    shared_size: str | None = None  # the field with its size
    shared_count: str | None = None  # or the field with its size in sizes of one expert
    shared_gate: str | None = None  # the name of the matrix of one row that weighs it


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of a family. Where a fact may be a `str`, it names the field of `config.json` to read."""

    defaults: Mapping[str, object] = field(default_factory=dict[str, object])

    norms: LayerNorms[str] = PRE_NORMS
    unit_offset: bool = False  # norms multiply by 1 + weight
    qk_norm: QkNormKind | None = None
    qk_norm_switch: str | None = None  # the field that must be true for it

    qkv_bias: bool | str = False  # on q_proj, k_proj and v_proj
    output_bias: bool | str = False  # on o_proj
    mlp_bias: bool | str = False  # on gate_proj, up_proj and down_proj
    fused: bool = False  # files have qkv_proj and gate_up_proj
    activation: str = "hidden_act"
    activation_names: Mapping[str, str] = field(default_factory=dict[str, str])  # its own → ours
    experts: ExpertFacts | None = None

    windows: WindowPattern = "none"
    layer_types: bool = False  # whether the field `layer_types` counts
    window_switch: str | None = None  # the field that must be true for `sliding_window` to count

    rope_layers: RopeLayers = "all"
    local_theta: str | None = None  # the field with the theta of layers with a window; never scaled
    partial_rotary: bool = False  # `partial_rotary_factor` counts
    scaling_names: Mapping[str, str] = field(default_factory=dict[str, str])  # its own name → ours

    query_scalar: str | None = None  # scores are divided by the root of this, not of head_dim
    attention_multiplier: str | None = None  # scores are multiplied by this instead
    attention_softcap: str | None = None
    logits_softcap: str | None = None
    root_embedding: bool = False  # embeddings are multiplied by the root of hidden_size
    embedding_multiplier: str | None = None
    residual_multiplier: str | None = None
    logits_divisor: str | None = None

    exceeds_f16: bool = False  # hidden states may exceed 65,504 (transformers issue 36822)


_MIXTRAL_EXPERTS = ExpertFacts(
    block="block_sparse_moe",
    gate="w1",
    up="w3",
    down="w2",
    intermediate="intermediate_size",
    normalise=True,
)
_QWEN_EXPERTS = ExpertFacts(
    block="mlp",
    gate="gate_proj",
    up="up_proj",
    down="down_proj",
    intermediate="moe_intermediate_size",
    normalise="norm_topk_prob",
    layers="stepped",
)
_DEEPSEEK_EXPERTS = replace(
    _QWEN_EXPERTS,
    layers="after dense",
    function="sigmoid",
    bias="gate.e_score_correction_bias",
    groups=True,
    scale="routed_scaling_factor",
    shared="shared_experts",
    shared_count="n_shared_experts",
)
_DEEPSEEK_DEFAULTS: Mapping[str, object] = {
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
}
_QWEN_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_THREE_AXES: Mapping[str, str] = {"mrope": "default"}  # text has the same position on all of them
_GEMMA_DEFAULTS: Mapping[str, object] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA_3 = Family(
    defaults=_GEMMA_DEFAULTS
    | {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    norms=SANDWICH_NORMS,
    unit_offset=True,
    qk_norm="head",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    activation="hidden_activation",
    windows="pattern",
    layer_types=True,
    local_theta="rope_local_base_freq",
    query_scalar="query_pre_attn_scalar",
    logits_softcap="final_logit_softcapping",
    root_embedding=True,
    exceeds_f16=True,
)

FAMILIES: Mapping[str, Family] = {
    # Llama 1 to 3.3, Falcon 3, and all others that use this name
    "LlamaForCausalLM": Family(
        defaults={"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "MistralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
        windows="all",
    ),
    # Ministral 3, Devstral 2
    "Ministral3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        windows="all",
    ),
    "MixtralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        windows="all",
        experts=_MIXTRAL_EXPERTS,
    ),
    "Qwen2ForCausalLM": Family(
        defaults=_QWEN_DEFAULTS,
        qkv_bias=True,
        scaling_names=_THREE_AXES,
        windows="last",
        layer_types=True,
        window_switch="use_sliding_window",
    ),
    "Qwen3ForCausalLM": Family(
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        scaling_names=_THREE_AXES,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="last",
        layer_types=True,
        window_switch="use_sliding_window",
    ),
    "Qwen3MoeForCausalLM": Family(
        defaults={
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="all",
        window_switch="use_sliding_window",
        experts=_QWEN_EXPERTS,
    ),
    # Qwen1.5-MoE, Qwen2-57B-A14B
    "Qwen2MoeForCausalLM": Family(
        defaults={
            "num_key_value_heads": 16,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "num_local_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        qkv_bias="qkv_bias",
        windows="last",
        layer_types=True,
        window_switch="use_sliding_window",
        experts=replace(
            _QWEN_EXPERTS,
            shared="shared_expert",
            shared_size="shared_expert_intermediate_size",
            shared_gate="shared_expert_gate",
        ),
    ),
    # GLM-4.5, 4.6 and 4.7, and those with Air
    "Glm4MoeForCausalLM": Family(
        defaults=_DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_norm_switch="use_qk_norm",
        partial_rotary=True,
        experts=_DEEPSEEK_EXPERTS,
    ),
    "SolarOpenForCausalLM": Family(
        defaults=_DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1280,
            "norm_topk_prob": True,
        },
        qkv_bias="attention_bias",
        experts=_DEEPSEEK_EXPERTS,
    ),
    "Dots1ForCausalLM": Family(
        defaults=_DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "moe_intermediate_size": 1408,
            "sliding_window": 4096,
            "max_window_layers": 62,
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="last",
        layer_types=True,
        experts=_DEEPSEEK_EXPERTS,
    ),
    "ExaoneMoeForCausalLM": Family(  # K-EXAONE
        defaults=_DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "num_experts": 64,
            "num_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        },
        qk_norm="head",
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
        experts=replace(_DEEPSEEK_EXPERTS, shared_count="num_shared_experts"),
    ),
    "MiniMaxM2ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
        },
        qk_norm="projection",
        partial_rotary=True,
        experts=replace(_MIXTRAL_EXPERTS, function="sigmoid", bias="e_score_correction_bias"),
    ),
    "OlmoeForCausalLM": Family(
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        experts=replace(_QWEN_EXPERTS, layers="all", intermediate="intermediate_size"),
    ),
    # Phi-3, 3.5 and 4, the mini and the medium ones
    "Phi3ForCausalLM": Family(
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        fused=True,
        windows="all",
        partial_rotary=True,
        scaling_names={"su": "longrope", "yarn": "longrope"},
    ),
    "GemmaForCausalLM": Family(
        defaults={
            "num_key_value_heads": 16,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        unit_offset=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        activation_names={"gelu": "gelu_pytorch_tanh"},
        root_embedding=True,
        exceeds_f16=True,
    ),
    "Gemma2ForCausalLM": Family(
        defaults=_GEMMA_DEFAULTS
        | {
            "max_position_embeddings": 8192,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        norms=SANDWICH_NORMS,
        unit_offset=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        activation="hidden_activation",
        windows="pattern",
        layer_types=True,
        query_scalar="query_pre_attn_scalar",
        attention_softcap="attn_logit_softcapping",
        logits_softcap="final_logit_softcapping",
        root_embedding=True,
        exceeds_f16=True,
    ),
    "Gemma3ForCausalLM": _GEMMA_3,
    "Olmo2ForCausalLM": Family(
        defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        norms=POST_NORMS,
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "Olmo3ForCausalLM": Family(
        defaults={
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        norms=POST_NORMS,
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="pattern",
        layer_types=True,
        local_theta="rope_theta",
    ),
    "SeedOssForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
    ),
    "SmolLM3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        windows="without rope",
        layer_types=True,
        window_switch="use_sliding_window",
        rope_layers="listed",
    ),
    "GraniteForCausalLM": Family(
        defaults={"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        attention_multiplier="attention_multiplier",
        embedding_multiplier="embedding_multiplier",
        residual_multiplier="residual_multiplier",
        logits_divisor="logits_scaling",
    ),
    "Exaone4ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        norms=POST_NORMS,
        qk_norm="head",
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
    ),
}

WITH_TEXT: Mapping[str, Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Mistral3ForConditionalGeneration": {
        "mistral": "MistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
    },
    "Qwen2_5_VLForConditionalGeneration": {"qwen2_5_vl_text": "Qwen2ForCausalLM"},
    "Qwen3VLForConditionalGeneration": {"qwen3_vl_text": "Qwen3ForCausalLM"},
}
"""Models of more than text: for each `model_type` that their `text_config` may have, the family of their text.

The first one is taken where it says nothing.
"""
