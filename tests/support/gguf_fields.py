"""What a GGUF file says of a model, from its config, as llama.cpp's converter writes it."""

from typing import Any

import gguf


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or {}
    everywhere = rope.get("full_attention", rope)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    if "intermediate_size" in config:
        size = config.get("intermediate_size_mlp", config["intermediate_size"])
        writer.add_feed_forward_length(size)
    writer.add_head_count(heads)
    if architecture == "kimi-linear":  # `KimiLinearModel.set_gguf_parameters`
        kinds = config["layer_types"]
        writer.add_head_count_kv([int(kind == "full_attention") for kind in kinds])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_kda_head_dim(config["linear_head_dim"])
    elif architecture != "gemma4":
        writer.add_head_count_kv(config["num_key_value_heads"])
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if architecture != "kimi-linear":
        writer.add_rope_freq_base(_theta(everywhere, head_dim))
    writer.add_vocab_size(config["vocab_size"])
    if architecture in ("deepseek2", "glm-dsa", "kimi-linear"):
        head_dim = config["qk_rope_head_dim"]
    elif architecture != "gemma4" and (
        head_dim != hidden // heads or architecture.startswith(("gemma", "qwen3", "seed_oss"))
    ):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    turned = int(head_dim * everywhere.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(turned)
    match everywhere.get("rope_type"):
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(everywhere["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(everywhere["factor"])
            writer.add_rope_scaling_orig_ctx_len(everywhere["original_max_position_embeddings"])
        case _:
            pass
    match architecture:
        case "llama" if "num_local_experts" in config:
            writer.add_expert_count(config["num_local_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
        case (
            "qwen3moe"
            | "qwen3vlmoe"
            | "qwen2moe"
            | "olmoe"
            | "minimax-m2"
            | "glm4moe"
            | "dots1"
            | "exaone-moe"
        ):
            _add_experts(writer, config)
        case "ernie4_5-moe":
            writer.add_expert_count(config["moe_num_experts"])
            writer.add_expert_used_count(config["moe_k"])
            writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
            writer.add_leading_dense_block_count(config["moe_layer_start_index"])
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_expert_shared_count(config["moe_num_shared_experts"])
        case "hunyuan-moe":
            writer.add_expert_count(config["num_experts"])
            writer.add_expert_used_count(config["moe_topk"])
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
        case "command-r" | "cohere2":
            writer.add_logit_scale(config["logit_scale"])
            if architecture == "cohere2":
                writer.add_sliding_window(config["sliding_window"])
        case "llama4":
            _add_experts(writer, config)
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        case "deepseek2" | "glm-dsa" | "kimi-linear":
            _add_latents(writer, config, rope)
        case "gpt-oss":
            _add_experts(writer, config)
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_sliding_window(config["sliding_window"])
        case "phi3":
            original = config.get("original_max_position_embeddings")
            original = original or config["max_position_embeddings"]
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_sliding_window(config.get("sliding_window") or 0)
        case "gemma4":
            _add_gemma4(writer, config)
        case "gemma2" | "gemma3":
            writer.add_sliding_window(config["sliding_window"])
            if config.get("final_logit_softcapping"):
                writer.add_final_logit_softcapping(config["final_logit_softcapping"])
            if architecture == "gemma2":
                writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            else:
                windows = [kind == "sliding_attention" for kind in config["layer_types"]]
                writer.add_sliding_window_pattern(windows)
                writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        case "olmo2" if config.get("sliding_window"):
            writer.add_sliding_window(config["sliding_window"])
        case "mistral3":
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        case "granite":
            writer.add_attention_scale(config["attention_multiplier"])
            writer.add_embedding_scale(config["embedding_multiplier"])
            writer.add_residual_scale(config["residual_multiplier"])
            writer.add_logit_scale(config["logits_scaling"])
        case _:
            pass
    if "linear_num_key_heads" in config:
        _add_delta_nets(writer, config)
    if architecture.startswith("exaone") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        windows = [kind == "sliding_attention" for kind in config["layer_types"]]
        writer.add_sliding_window_pattern(windows)


def _theta(rope: dict[str, Any], dim: int) -> float:
    """The base of a rope; Hunyuan's converter multiplies it by a power of alpha."""
    stretch = rope["alpha"] ** (dim / (dim - 2)) if rope.get("alpha") else 1.0
    return rope["rope_theta"] * stretch


def _add_latents(writer: gguf.GGUFWriter, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Write what `DeepseekV2Model.set_gguf_parameters` writes."""
    rank, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotary)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotary)
    writer.add_value_length_mla(config["v_head_dim"])
    if rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    is_first = config["model_type"] == "deepseek_v2"
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SOFTMAX if is_first else kinds.SIGMOID)
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
    dense = config.get("mlp_layer_types", []).count("dense")
    _add_experts(writer, {"first_k_dense_replace": dense, "norm_topk_prob": False} | config)


def _add_delta_nets(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add what `Qwen3NextModel.set_gguf_parameters` adds."""
    heads = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * heads)
    writer.add_full_attention_interval(4)
    if "num_experts" in config:
        _add_experts(writer, config)


def _add_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    full = config["per_layer_config"][str(windows.index(False))]  # of fewer than ten layers
    full_heads = full.get("num_key_value_heads", config["num_key_value_heads"])
    writer.add_head_count_kv(
        [config["num_key_value_heads"] if windowed else full_heads for windowed in windows]
    )
    writer.add_key_length(full["head_dim"])
    writer.add_value_length(full["head_dim"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windows)
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_shared_kv_layers(0)
    writer.add_embedding_length_per_layer_input(0)
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _add_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    counts = ("num_experts", "n_routed_experts", "num_local_experts")
    writer.add_expert_count(next(config[name] for name in counts if config.get(name)))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "routed_scaling_factor" in config:
        shared = config.get("n_shared_experts") or config["num_shared_experts"]
        writer.add_expert_shared_count(shared)
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        if config["n_group"] is not None:
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
