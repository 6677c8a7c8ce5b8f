"""The rows of Granite in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import GRANITE_EXPERTS
from potluck.model.families.facts import Family, LayerNorms
from potluck.model.families.words import windows_but_each_fourth
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN
from potluck.model.powers import power

_GRANITE = Family(
    defaults={"max_position_embeddings": 2048},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    attention_multiplier="attention_multiplier",
    embedding_multiplier="embedding_multiplier",
    residual_multiplier="residual_multiplier",
    logits_divisor="logits_scaling",
)
_MIXTURE = replace(
    _GRANITE,
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    mlp_bias=False,
    experts=GRANITE_EXPERTS,
)
_SHARED = replace(
    GRANITE_EXPERTS,
    shared="shared_mlp",
    shared_names=("input_linear", "output_linear"),
    shared_size="shared_intermediate_size",
)

_SHARED_WINDOWED = replace(
    _SHARED,
    router="block_sparse_moe.router",
    stack_names={
        f"block_sparse_moe.experts.{part}": f"experts.{part}"
        for part in ("gate_up_proj", "down_proj")
    },
)


def _peri_words(fields: Fields) -> Mapping[str, object]:
    if not fields.flag("use_post_norm", True):
        raise invalid("use_post_norm", False, "must be true")
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, MAX_HIDDEN)
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, max(1, hidden // heads))
    multiplier = fields.value("attention_multiplier")
    return {"attention_multiplier": power(head_dim, -0.5) if multiplier is None else multiplier}


def _windowed(family: Family, *, defaults: Mapping[str, object]) -> Family:
    return replace(
        family,
        defaults=defaults,
        words=windows_but_each_fourth,
        windows="all",
        layer_types=True,
        layer_thetas="layer_rope_theta",
        sinks=True,
    )


GRANITE: Mapping[str, Family] = {
    "GraniteForCausalLM": _GRANITE,
    # HyperCLOVA X: as Granite, with norms after attention and MLP too
    "HyperCLOVAXForCausalLM": replace(
        _GRANITE,
        words=_peri_words,
        norms=LayerNorms(
            before_mixer="input_layernorm",
            after_mixer="post_norm1",
            before_mlp="post_attention_layernorm",
            after_mlp="post_norm2",
        ),
        logits_divisor=None,
        logits_multiplier="logits_scaling",
    ),
    # Granite 3 with experts
    "GraniteMoeForCausalLM": _MIXTURE,
    "GraniteMoeSharedForCausalLM": replace(
        _MIXTURE, defaults={**_MIXTURE.defaults, "shared_intermediate_size": 0}, experts=_SHARED
    ),
    # Granite with windows and sinks
    "GraniteSWAForCausalLM": _windowed(
        _GRANITE,
        defaults={
            "vocab_size": 100352,
            "hidden_size": 2560,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "sliding_window": 128,
            "eos_token_id": 100257,
        },
    ),
    "GraniteMoeSWAForCausalLM": _windowed(
        replace(_MIXTURE, experts=_SHARED_WINDOWED),
        defaults={**_MIXTURE.defaults, "shared_intermediate_size": 0, "sliding_window": 128},
    ),
    # Granite 4, with experts or one MLP
    "GraniteMoeHybridForCausalLM": replace(
        _MIXTURE,
        defaults={
            **_MIXTURE.defaults,
            "shared_intermediate_size": 1024,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        mlp_block="shared_mlp",
        mlp_size="shared_intermediate_size",
        mlp_names=("input_linear", "output_linear"),
        mamba="mamba",
        rope_layers="named",
        experts=replace(_SHARED, may_be_none=True),
    ),
    # from which Granite 4 was made
    "BambaForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        norms=LayerNorms(before_mixer="input_layernorm", before_mlp="pre_ff_layernorm"),
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_block="feed_forward",
        mlp_bias="mlp_bias",
        mamba="mamba",
        partial_rotary=True,
    ),
}
