"""The rows of families whose norms are layer norms with biases, in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import MIXTRAL_EXPERTS
from potluck.model.families.facts import Family, LayerNorms

_PHI_MOE = Family(
    defaults={
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 6400,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_experts_per_tok": 2,
        "num_local_experts": 16,
        "router_jitter_noise": 0.01,
        "eos_token_id": 2,
    },
    norm_kind="biased layer",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    head_bias="lm_head_bias",
    windows="all",
    experts=replace(
        MIXTRAL_EXPERTS, normalise=False, function="sparse mixer", jitter="router_jitter_noise"
    ),
)

LAYER_NORMS: Mapping[str, Family] = {
    "Starcoder2ForCausalLM": Family(
        defaults={
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
            "eos_token_id": 50256,
        },
        field_names={"norm_epsilon": "rms_norm_eps"},
        norm_kind="biased layer",
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        mlp_parts=("", "c_fc", "c_proj"),
        activation_names={"gelu_pytorch_tanh": "gelu_alone"},
        windows="all",
    ),
    # StableLM 2 1.6B, StableLM 3B
    "StableLmForCausalLM": Family(
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "layer_norm_eps": 1e-5,
            "partial_rotary_factor": 0.25,
            "eos_token_id": 0,
        },
        norm_kind="biased layer",
        qkv_bias="use_qkv_bias",
        partial_rotary=True,
        lacks={
            "qk_layernorm": "layer norms of each head of queries and keys, as StableLM 2 12B has them",
            "use_parallel_residual": "attention beside the MLP, as StableLM 2 12B has it",
        },
    ),
    # Phi-1, 1.5 and 2
    "PhiForCausalLM": Family(
        defaults={
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "hidden_act": "gelu_new",
            "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "eos_token_id": 2,
        },
        norms=LayerNorms(before_mixer="input_layernorm"),
        norm_kind="biased layer",
        side_by_side=True,
        qkv_bias=True,
        output_bias=True,
        attention_output="dense",
        mlp_bias=True,
        mlp_parts=("", "fc1", "fc2"),
        activation_names={"gelu_new": "gelu_alone"},
        head_bias=True,
        partial_rotary=True,
        lacks={"qk_layernorm": "layer norms of queries and keys"},
    ),
    # Phi-3.5-MoE, by the name of its files and by that of transformers
    "PhiMoEForCausalLM": _PHI_MOE,
    "PhimoeForCausalLM": _PHI_MOE,
    # NVIDIA's Nemotron 4 and Minitron
    "NemotronForCausalLM": Family(
        defaults={
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 32,
            "num_attention_heads": 48,
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "eos_token_id": 3,
        },
        field_names={"norm_eps": "rms_norm_eps"},
        norm_kind="biased layer",
        unit_offset=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        partial_rotary=True,
    ),
    "Jais2ForCausalLM": Family(
        defaults={
            "vocab_size": 150272,
            "hidden_size": 3328,
            "intermediate_size": 26624,
            "num_hidden_layers": 32,
            "num_attention_heads": 26,
            "hidden_act": "relu2",
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-5,
            "attention_bias": True,
            "mlp_bias": True,
            "eos_token_id": 150024,
        },
        norm_kind="biased layer",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
}
