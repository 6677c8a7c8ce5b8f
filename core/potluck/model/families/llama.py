"""The rows of Llama and those close to it in the table of families."""

from collections.abc import Mapping

from potluck.model.families.experts import LLAMA_EXPERTS
from potluck.model.families.facts import SANDWICH_NORMS, Family, OutputGate
from potluck.model.families.words import (
    FULL,
    WINDOWED,
    first_entries,
    renamed,
    windows_but_each_fourth,
)
from potluck.model.fields import Fields
from potluck.model.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_MULTIPLIER,
    MAX_THETA,
)
from potluck.model.powers import power


def _muse_words(fields: Fields) -> Mapping[str, object]:
    """The last layer and each fourth one before it see all, and have no rope; queries have a factor."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, MAX_HIDDEN)
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, max(1, hidden // heads))
    factor = fields.number("qk_scale_factor", 0.0, MAX_MULTIPLIER, 3.87)
    rope = fields.fields("rope_parameters") if "rope_parameters" in fields else Fields({})
    theta = rope.number("rope_theta", 1.0, MAX_THETA, 10000.0)
    sees_all = [not (layers - 1 - layer) % 4 for layer in range(layers)]
    return {
        "attention_multiplier": factor * power(head_dim, -0.5),
        "layer_types": first_entries(fields, "layer_types", layers)
        or [FULL if sees else WINDOWED for sees in sees_all],
        "layer_rope_theta": first_entries(fields, "layer_rope_theta", layers)
        or [0 if sees else theta for sees in sees_all],
    }


LLAMA: Mapping[str, Family] = {
    # Llama 1 to 3.3, Falcon 3, and all others that use this name
    "LlamaForCausalLM": Family(
        defaults={"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    # The text of Llama 4: Scout and Maverick
    "Llama4ForCausalLM": Family(
        defaults={
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "use_qk_norm": True,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        qk_norm="head",
        qk_norm_switch="use_qk_norm",
        qk_norm_after_rope=True,
        qk_norm_is_plain=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_block="feed_forward",
        mlp_size="intermediate_size_mlp",
        windows="with rope",
        chunk_size="attention_chunk_size",
        layer_types=True,
        rope_layers="listed",
        unturned_scale="attn_temperature_tuning",
        paired_rope=True,
        experts=LLAMA_EXPERTS,
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
    # Kyutai's Helium
    "HeliumForCausalLM": Family(
        defaults={
            "vocab_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-8,
            "rope_theta": 100000.0,
            "eos_token_id": 2,
        },
        qkv_bias="attention_bias",
        mlp_bias="mlp_bias",
        paired_rope=True,
    ),
    # The text of Meta's Muse Glimmer
    "MuseGlimmerForCausalLM": Family(
        defaults={
            "vocab_size": 202048,
            "hidden_size": 6656,
            "intermediate_size": 19968,
            "num_hidden_layers": 52,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "post_norm_eps": 1e-8,
            "sliding_window": 2048,
            "final_logit_softcapping": 20.0,
            "output_multiplier": 0.19611613513818404,
            "eos_token_id": 200001,
        },
        words=_muse_words,
        norms=SANDWICH_NORMS,
        unit_offset=True,
        final_norm_is_whole=True,
        after_norm_eps="post_norm_eps",
        embedding_norm=True,
        qk_norm="head",
        qk_norm_is_plain="everywhere",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        output_gate=OutputGate(matrix="gate_proj", function="sigmoid"),
        activation="hidden_activation",
        windows="all",
        layer_types=True,
        layer_thetas="layer_rope_theta",
        attention_multiplier="attention_multiplier",
        logits_softcap="final_logit_softcapping",
        logits_multiplier="output_multiplier",
    ),
    # Meta's Code World Model
    "CwmForCausalLM": Family(
        defaults={
            "vocab_size": 128256,
            "hidden_size": 6144,
            "intermediate_size": 21504,
            "num_hidden_layers": 64,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "sliding_window": 8192,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e6,
                "factor": 16.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
            "eos_token_id": [128001, 128008, 128009],
        },
        words=windows_but_each_fourth,
        windows="all",
        layer_types=True,
    ),
    "InternLM3ForCausalLM": Family(
        defaults={
            "vocab_size": 128512,
            "hidden_size": 4096,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        words=lambda fields: renamed(fields, {"qkv_bias": "attention_bias", "bias": "mlp_bias"}),
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "IQuestCoderForCausalLM": Family(
        defaults={
            "vocab_size": 76800,
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_hidden_layers": 80,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 2,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        lacks={
            "clip_qkv": "queries, keys and values that are clipped",
            "use_sliding_window": "windows of its own kind",
        },
    ),
}
