"""The rows of models with latent attention in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_DEFAULTS, DEEPSEEK_EXPERTS
from potluck.model.families.facts import Family

_SIZES: dict[str, object] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

_INDEXER: dict[str, object] = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}

_V3 = Family(
    defaults=DEEPSEEK_DEFAULTS
    | _SIZES
    | {
        "max_position_embeddings": 4096,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "rope_interleave": True,
    },
    latent=True,
    latent_bias="attention_bias",
    paired_rope="rope_interleave",
    experts=DEEPSEEK_EXPERTS,
)

LATENT: Mapping[str, Family] = {
    # DeepSeek-V2 and its Lite
    "DeepseekV2ForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | _SIZES
        | {
            "max_position_embeddings": 2048,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
        },
        latent=True,
        latent_bias="attention_bias",
        paired_rope=True,
        mlp_bias="mlp_bias",
        experts=replace(
            DEEPSEEK_EXPERTS,
            function="softmax",
            bias=None,
            normalise=False,
            group_method="topk_method",
            best_in_group=1,
        ),
    ),
    # DeepSeek-V3 and R1, Kimi K2
    "DeepseekV3ForCausalLM": _V3,
    # SKT's A.X K1
    "AXK1ForCausalLM": replace(
        _V3,
        defaults={
            **_V3.defaults,
            "vocab_size": 163840,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "max_position_embeddings": 32768,
            "n_routed_experts": 192,
            "first_k_dense_replace": 1,
            "eos_token_id": 163691,
        },
        experts=replace(DEEPSEEK_EXPERTS, norm_after="post_mlp_layernorm"),
    ),
    # Their attention is V3's up to `index_topk` tokens. Of more, an indexer chooses these.
    "DeepseekV32ForCausalLM": replace(
        _V3,
        defaults={**_V3.defaults, "max_position_embeddings": 163840, **_INDEXER},
        paired_rope=True,
        indexer="halves",
    ),
    "GlmMoeDsaForCausalLM": replace(  # GLM-5
        _V3,
        defaults={
            **_V3.defaults,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "n_group": 1,
            "topk_group": 1,
            **_INDEXER,
            "index_n_heads": 32,
        },
        paired_rope=True,
        indexer="pairs",
    ),
    # GLM-4.7-Flash
    "Glm4MoeLiteForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | _SIZES
        | {
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
            "rope_interleave": True,
        },
        latent=True,
        latent_bias="attention_bias",
        paired_rope="rope_interleave",
        experts=DEEPSEEK_EXPERTS,
    ),
    # Mistral Small 4
    "Mistral4ForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | _SIZES
        | {
            "q_lora_rank": 1024,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 64,
            "max_position_embeddings": 1048576,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 2048,
            "norm_topk_prob": True,
            "rope_interleave": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 128.0,
                "original_max_position_embeddings": 8192,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        latent=True,
        latent_bias="attention_bias",
        paired_rope="rope_interleave",
        experts=replace(
            DEEPSEEK_EXPERTS,
            function="softmax",
            bias=None,
            stacked="rows",
            fused="gate_up_proj",
        ),
    ),
    # Youtu-LLM: latent attention without experts
    "YoutuForCausalLM": replace(
        _V3,
        defaults=_SIZES
        | {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "max_position_embeddings": 131072,
            "rope_interleave": True,
            "tie_word_embeddings": True,
            "eos_token_id": 128001,
        },
        experts=None,
    ),
    # Kimi Linear: delta nets with a decay for each channel, and latent attention without rope
    "KimiLinearForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | _SIZES
        | {
            "q_lora_rank": None,
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-5,
            "num_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.446,
            "linear_num_heads": 32,
            "linear_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
        field_names={
            "model_max_length": "max_position_embeddings",
            "moe_renormalize": "norm_topk_prob",
            "num_expert_group": "n_group",
            "num_experts_per_token": "num_experts_per_tok",
            "num_shared_experts": "n_shared_experts",
        },
        latent=True,
        latent_unturned=True,
        latent_bias="attention_bias",
        channel_delta="plain",
        experts=replace(
            DEEPSEEK_EXPERTS,
            block="block_sparse_moe",
            gate="w1",
            up="w3",
            down="w2",
            shared_names=("gate_proj", "up_proj", "down_proj"),
        ),
    ),
    # The text of GLM-5.3-Flash: the same, balanced streams, and an indexer that chooses pools of tokens
    "Glm5NextForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | _SIZES
        | _INDEXER
        | {
            "qk_nope_head_dim": 256,
            "qk_rope_head_dim": 0,
            "v_head_dim": 256,
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-5,
            "intermediate_size": 12288,
            "n_routed_experts": 288,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "swiglu_limit": 10.0,
            "index_n_heads": 32,
            "index_kpool": 16,
            "linear_num_heads": 64,
            "linear_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "linear_lower_bound": -5.0,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
        },
        latent=True,
        latent_unturned=True,
        latent_norm_eps=True,
        latent_bias="attention_bias",
        indexer="pools",
        channel_delta="bounded",
        streams="averaged",
        clamped_swiglu="plain",
        experts=DEEPSEEK_EXPERTS,
    ),
}
