"""What GGUF files say of mixtures of experts, and of how much of a head is turned."""

from typing import cast

from potluck.model.gguf.keys import Config, Keys
from potluck.model.mixing.latent import ORDERED

_SOFTMAX, _SIGMOID = 1, 2  # llama.cpp's numbers for what routers apply


def mixtral(keys: Keys, config: Config) -> None:
    """Set what the first mixtures have."""
    config["num_local_experts"] = keys.integer("expert_count")
    config["num_experts_per_tok"] = keys.integer("expert_used_count")
    config["sliding_window"] = None


def experts(keys: Keys, config: Config) -> None:
    """Set what all mixtures have."""
    size = cast("int", config["intermediate_size"])
    config["num_experts"] = keys.integer("expert_count")
    config["num_experts_per_tok"] = keys.integer("expert_used_count")
    config["moe_intermediate_size"] = keys.integer("expert_feed_forward_length", size)


def gpt_oss(keys: Keys, config: Config) -> None:
    """Set the mixture of gpt-oss, and its windows."""
    config["num_local_experts"] = keys.integer("expert_count")
    config["num_experts_per_tok"] = keys.integer("expert_used_count")
    config["intermediate_size"] = keys.integer("expert_feed_forward_length")
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    if isinstance(scaling := config.get("rope_scaling"), dict):
        config["rope_scaling"] = scaling | {"truncate": False}  # as it was trained


def llama4(keys: Keys, config: Config) -> None:
    """Set what files say of mixtures; that of attention llama.cpp knows (src/models/llama4.cpp)."""
    dense, experts = cast("int", config["intermediate_size"]), keys.integer("expert_count")
    has_chunks = keys.integer("attention.sliding_window", 1) > 0
    config |= {
        "intermediate_size_mlp": dense,
        "intermediate_size": keys.integer("expert_feed_forward_length", dense),
        "num_local_experts": experts,
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "interleave_moe_layer_step": keys.integer("interleave_moe_layer_step", 1),
        "use_qk_norm": experts != 128,  # Maverick has none
    }
    if not has_chunks:
        layers = cast("int", config["num_hidden_layers"])
        config |= {"attention_chunk_size": None, "no_rope_layers": [1] * layers}


def qwen2_experts(keys: Keys, config: Config) -> None:
    """Set what mixtures with a shared expert have."""
    experts(keys, config)
    config["shared_expert_intermediate_size"] = keys.integer("expert_shared_feed_forward_length")


def qwen3_experts(keys: Keys, config: Config) -> None:
    """Set a mixture whose factors always add up to one."""
    experts(keys, config)
    config["norm_topk_prob"] = True  # llama.cpp always normalises (src/models/qwen3moe.cpp)


def minimax(keys: Keys, config: Config) -> None:
    """Set a mixture whose heads are turned in part."""
    experts(keys, config)
    partial_rotary(keys, config)


def minimax3(keys: Keys, config: Config) -> None:
    """Set what the indexers of MiniMax M3 have, which layers have one, and which have experts."""
    minimax(keys, config)
    shapes = keys.file.shapes
    size, dense = cast("int", config["moe_intermediate_size"]), "blk.0.ffn_gate.weight"
    config |= {
        "intermediate_size": size,
        "dense_intermediate_size": keys.rows(dense) if dense in shapes else size,
        "shared_intermediate_size": size * keys.integer("expert_shared_count", 0),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "rotary_dim": keys.integer("rope.dimension_count"),
        "index_n_heads": keys.integer("attention.indexer.head_count"),
        "index_head_dim": keys.integer("attention.indexer.key_length"),
        "index_topk_blocks": keys.integer("attention.indexer.top_k"),
        "index_block_size": keys.integer("attention.indexer.block_size"),
        "index_local_blocks": keys.integer("attention.indexer.local_blocks"),
        "mlp_layer_types": mlp_types(keys),
        "layer_types": [
            "minimax_m3_sparse"
            if f"blk.{layer}.indexer.q_proj.weight" in shapes
            else "full_attention"
            for layer in range(keys.layers())
        ],
    }


def hy3(keys: Keys, config: Config) -> None:
    """Set the mixture of Hy3 by the names that it has for it."""
    experts(keys, config)
    size = cast("int", config["moe_intermediate_size"])
    config |= {
        "mlp_layer_types": mlp_types(keys),
        "num_shared_experts": keys.integer("expert_shared_feed_forward_length", size)
        // max(1, size),
        "router_scaling_factor": keys.number("expert_weights_scale", 1.0),
    }


def mlp_types(keys: Keys) -> list[str]:
    """Whether each layer has experts: those that have a router."""
    shapes = keys.file.shapes
    return [
        "sparse" if f"blk.{layer}.ffn_gate_inp.weight" in shapes else "dense"
        for layer in range(keys.layers())
    ]


def routed(keys: Keys, config: Config) -> None:
    """Set what routers like DeepSeek's have."""
    experts(keys, config)
    partial_rotary(keys, config)
    shared = keys.integer("expert_shared_count", 0)
    config |= {
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0),
        "n_shared_experts": shared,
        "num_shared_experts": shared,
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in keys.file.shapes,
    }


def deepseek2(keys: Keys, config: Config) -> None:
    """Set what latent attention has; its keys and values count as those of the cached rows in newer files."""
    rotary = keys.integer("rope.dimension_count")
    size = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    values = keys.integer("attention.value_length_mla", keys.integer("attention.value_length"))
    has_query_latent = "attention.q_lora_rank" in keys
    config |= {
        "q_lora_rank": keys.integer("attention.q_lora_rank") if has_query_latent else None,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": size - rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": values,
        "rope_interleave": True,
        "attention_bias": "blk.0.attn_kv_a_mqa.bias" in keys.file.shapes,
        ORDERED: "blk.0.attn_k_b.weight" in keys.file.shapes,
    }
    del config["head_dim"]
    scaling = cast("Config | None", config.get("rope_scaling"))
    if scaling is not None and "rope.scaling.yarn_log_multiplier" in keys:
        magnitude = 10 * keys.number("rope.scaling.yarn_log_multiplier")  # a tenth of it is stored
        scaling |= {"mscale": magnitude, "mscale_all_dim": magnitude}
    if scaling is not None and "attention.temperature_scale" in keys:  # Mistral Large 3 and Small 4
        scaling["llama_4_scaling_beta"] = keys.number("attention.temperature_scale")
        if "attention.temperature_length" in keys:
            scaling["original_max_position_embeddings"] = keys.integer(
                "attention.temperature_length"
            )
    deepseek_router(keys, config)


def glm_dsa(keys: Keys, config: Config) -> None:
    """Set what GLM-5's indexers have. Older files do not say which layers have one: their tensors do."""
    deepseek2(keys, config)
    layers, types = cast("int", config["num_hidden_layers"]), "attention.indexer.types"
    if types in keys:
        are_full = [bool(one) for one in keys.each(types, layers)]
    else:
        shapes = keys.file.shapes
        are_full = [f"blk.{layer}.indexer.attn_k.weight" in shapes for layer in range(layers)]
    _indexer(keys, config)
    config |= {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "indexer_types": ["full" if is_full else "shared" for is_full in are_full],
    }


def deepseek32(keys: Keys, config: Config) -> None:
    """Set what DeepSeek-V3.2's indexers have, of which each layer has one."""
    deepseek2(keys, config)
    _indexer(keys, config)
    config["architectures"] = ["DeepseekV32ForCausalLM"]


def mistral4(keys: Keys, config: Config) -> None:
    """Set what Mistral Small 4 has: latent attention, and a router of a softmax."""
    deepseek2(keys, config)
    config["architectures"] = ["Mistral4ForCausalLM"]
    # The family's own scaling is not that of a file without one.
    scaling = cast("Config", config.pop("rope_scaling", {"rope_type": "default"}))
    config["rope_parameters"] = scaling | {"rope_theta": config["rope_theta"]}


def _indexer(keys: Keys, config: Config) -> None:
    config |= {
        "index_n_heads": keys.integer("attention.indexer.head_count"),
        "index_head_dim": keys.integer("attention.indexer.key_length"),
        "index_topk": keys.integer("attention.indexer.top_k"),
    }


def kimi_linear(keys: Keys, config: Config) -> None:
    """Set what Kimi Linear has: layers without heads of keys are delta nets."""
    deepseek2(keys, config)
    layers, shapes = cast("int", config["num_hidden_layers"]), keys.file.shapes
    heads = keys.each("attention.head_count_kv", layers)
    config |= {
        "architectures": ["KimiLinearForCausalLM"],
        "layer_types": ["full_attention" if count else "linear_attention" for count in heads],
        "linear_num_heads": config["num_attention_heads"],
        "linear_head_dim": keys.integer("kda.head_dim"),
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel"),
        # llama.cpp always normalises (src/models/kimi-linear.cpp)
        "norm_topk_prob": True,
        ORDERED: any(name.endswith(".attn_k_b.weight") for name in shapes),
    }


def deepseek_router(keys: Keys, config: Config) -> None:
    """Set the router of V3 where it is one of sigmoids, and else that of V2; Youtu has none."""
    if not keys.integer("expert_count", 0):
        config["architectures"] = ["YoutuForCausalLM"]
        return
    experts(keys, config)
    groups = keys.integer("expert_group_count", 1)
    config |= {
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0),
        "n_shared_experts": keys.integer("expert_shared_count", 0),
        "n_group": groups,
        "topk_group": keys.integer("expert_group_used_count", 1),
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
    }
    # Files of the first V2 say nothing of the function.
    if keys.integer("expert_gating_func", _SOFTMAX) == _SIGMOID:
        config["architectures"] = ["DeepseekV3ForCausalLM"]


def partial_rotary(keys: Keys, config: Config) -> None:
    """Set which part of a head is turned."""
    config |= turned_part(keys, "rope.dimension_count", cast("int", config["head_dim"]))


def glm_4(keys: Keys, config: Config) -> None:
    """Set rope, whose numbers the converter puts half a head apart where the whole model sees pictures."""
    partial_rotary(keys, config)
    config["rope_interleave"] = "rope.dimension_sections" not in keys


def turned_part(keys: Keys, name: str, head: int) -> Config:
    """Which part of a head rope turns, as a field says it in numbers."""
    turned = keys.integer(name, head)
    return {"partial_rotary_factor": min(1.0, (turned + 0.5) / head)}  # the reader rounds down


def ernie_experts(keys: Keys, config: Config) -> None:
    """Set a mixture by the names that ERNIE has for it."""
    experts(keys, config)
    routers = [name.split(".")[1] for name in keys.file.shapes if "ffn_gate_inp" in name]
    numbers = [int(layer) for layer in routers if layer.isdecimal()]
    config |= {
        "moe_num_experts": config["num_experts"],
        "moe_k": config["num_experts_per_tok"],
        "moe_num_shared_experts": keys.integer("expert_shared_count", 0),
        "moe_layer_start_index": keys.integer("leading_dense_block_count", 0),
        "moe_layer_end_index": max(numbers, default=-1),
        "moe_layer_interval": keys.integer("interleave_moe_layer_step", 1),
    }


def hunyuan_experts(keys: Keys, config: Config) -> None:
    """Set what all experts have; files have the frequency of rope that follows from its alpha."""
    experts(keys, config)
    config["moe_topk"] = config["num_experts_per_tok"]
    config["intermediate_size"] = config["moe_intermediate_size"]
