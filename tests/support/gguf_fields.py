"""What a GGUF file says of a model, from its config, as llama.cpp's converter writes it."""

from typing import Any

import gguf

from potluck.model.config import ModelConfig

_EPSILONS = ("layer_norm_epsilon", "norm_eps", "norm_epsilon", "rms_norm_eps")
LATENT = ("deepseek2", "deepseek32", "glm-dsa", "mistral4", "kimi-linear")


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or {}
    everywhere = rope.get("full_attention", rope)
    is_hybrid = "layers_block_type" in config or "conv_L_cache" in config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    if "intermediate_size" in config and "layers_block_type" not in config:
        size = config.get("intermediate_size_mlp", config["intermediate_size"])
        writer.add_feed_forward_length(size)
    if architecture not in ("step35", "laguna"):
        writer.add_head_count(heads)
    if architecture == "kimi-linear":  # `KimiLinearModel.set_gguf_parameters`
        kinds = config["layer_types"]
        writer.add_head_count_kv([int(kind == "full_attention") for kind in kinds])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_kda_head_dim(config["linear_head_dim"])
    elif not (is_hybrid or architecture in ("gemma4", "granitehybrid", "step35", "mimo2")):
        writer.add_head_count_kv(config["num_key_value_heads"])
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        epsilon = next(config[name] for name in _EPSILONS if name in config)
        writer.add_layer_norm_rms_eps(epsilon)
    if everywhere and architecture != "kimi-linear":
        writer.add_rope_freq_base(_theta(everywhere, head_dim))
    writer.add_vocab_size(config["vocab_size"])
    if architecture in LATENT:
        head_dim = config["qk_rope_head_dim"]
    elif architecture not in ("gemma4", "mimo2") and (
        head_dim != hidden // heads or architecture.startswith(("gemma", "qwen3", "seed_oss"))
    ):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    part = 1.0 if architecture in LATENT else everywhere.get("partial_rotary_factor", 1.0)
    turned = int(head_dim * part)
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
        case "muse-glimmer":
            windows = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window(config["sliding_window"])
            writer.add_sliding_window_pattern(windows)
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
            writer.add_logit_scale(config["output_multiplier"])
        case "minimax-m3" | "hy_v3" | "mellum":
            _add_mixture(writer, config, architecture)
        case "step35" | "mimo2" | "afmoe" | "laguna":
            _add_windowed(writer, config, architecture)
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
        case "falcon-h1":
            writer.add_ssm_conv_kernel(config["mamba_d_conv"])
            writer.add_ssm_state_size(config["mamba_d_state"])
            writer.add_ssm_group_count(config["mamba_n_groups"])
            writer.add_ssm_time_step_rank(config["mamba_n_heads"])
            writer.add_ssm_inner_size(config["mamba_d_ssm"])
        case "nemotron_h" | "nemotron_h_moe":
            _add_nemotron(writer, config)
        case "lfm2" | "lfm2moe":
            kinds = config["layer_types"]
            heads = config["num_key_value_heads"]
            writer.add_head_count_kv([heads * (kind == "full_attention") for kind in kinds])
            writer.add_shortconv_l_cache(config["conv_L_cache"])
            if architecture == "lfm2moe":
                _add_experts(
                    writer,
                    {"first_k_dense_replace": config["num_dense_layers"], "n_group": None} | config,
                )
        case "llama4":
            _add_experts(writer, config)
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        case _ if architecture in LATENT:
            _add_latents(writer, config, rope)
        case "gpt-oss":
            _add_experts(writer, config)
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_sliding_window(config["sliding_window"])
        case "phi3" | "phimoe":
            original = config.get("original_max_position_embeddings")
            original = original or config["max_position_embeddings"]
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_sliding_window(config.get("sliding_window") or 0)
            if architecture == "phimoe":
                writer.add_expert_count(config["num_local_experts"])
                writer.add_expert_used_count(config["num_experts_per_tok"])
                writer.add_rope_scaling_attn_factors(rope["short_mscale"])
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
        case "granite" | "granitemoe" | "granitehybrid":
            writer.add_attention_scale(config["attention_multiplier"])
            writer.add_embedding_scale(config["embedding_multiplier"])
            writer.add_residual_scale(config["residual_multiplier"])
            writer.add_logit_scale(config["logits_scaling"])
            if config.get("num_local_experts"):
                _add_experts(writer, config)
            if config.get("shared_intermediate_size"):
                size = config["shared_intermediate_size"]
                writer.add_expert_shared_feed_forward_length(size)
            if architecture == "granitehybrid":
                _add_state_spaces(writer, config)
        case _:
            pass
    if "linear_num_key_heads" in config:
        _add_delta_nets(writer, config)
    if architecture == "qwen4exp":
        _add_qwen_4(writer, config)
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
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    is_first = config["model_type"] in ("deepseek_v2", "mistral4")
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SOFTMAX if is_first else kinds.SIGMOID)
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
    if config["model_type"] == "youtu":  # has none
        return
    dense = config.get("mlp_layer_types", []).count("dense")
    _add_experts(writer, {"first_k_dense_replace": dense, "norm_topk_prob": False} | config)


def _add_mixture(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    """Add what the converters of MiniMax M3, Hy3 and Mellum add."""
    counts = ("num_experts", "n_routed_experts", "num_local_experts")
    writer.add_expert_count(next(config[name] for name in counts if config.get(name)))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    match architecture:
        case "minimax-m3":
            size = config["intermediate_size"]
            writer.add_expert_feed_forward_length(size)
            writer.add_expert_shared_count(config["shared_intermediate_size"] // size)
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_indexer_head_count(config["index_n_heads"])
            writer.add_indexer_key_length(config["index_head_dim"])
            writer.add_indexer_top_k(config["index_topk_blocks"])
            for name in ("block_size", "local_blocks"):
                writer.add_uint32(f"minimax-m3.attention.indexer.{name}", config[f"index_{name}"])
        case "hy_v3":
            size = config["moe_intermediate_size"]
            writer.add_expert_feed_forward_length(size)
            writer.add_expert_shared_feed_forward_length(size * config["num_shared_experts"])
            writer.add_expert_weights_scale(config["router_scaling_factor"])
        case _:
            kinds, rope = config["layer_types"], config["rope_parameters"]
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_sliding_window(config["sliding_window"])
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
            writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])


def _add_windowed(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    """Add what the converters of families add whose layers with a window have heads or ropes of their own."""
    kinds, rope = config["layer_types"], config["rope_parameters"]
    are_windowed = [kind == "sliding_attention" for kind in kinds]
    counts = ("num_experts", "n_routed_experts", "num_local_experts")
    writer.add_expert_count(next(config[name] for name in counts if config.get(name)))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_sliding_window(config["sliding_window"])
    heads = config["num_attention_heads"]
    if architecture == "afmoe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_shared_count(config["num_shared_experts"])
        writer.add_expert_weights_scale(config["route_scale"])
        return
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    match architecture:
        case "step35":
            near = config["num_sliding_attention_heads"]
            writer.add_sliding_window_pattern(are_windowed)
            writer.add_head_count([near if windowed else heads for windowed in are_windowed])
            writer.add_head_count_kv([config["num_key_value_heads"]] * len(kinds))
            writer.add_expert_shared_feed_forward_length(config["share_expert_dim"])
            writer.add_expert_weights_scale(config["moe_router_scaling_factor"])
            writer.add_swiglu_clamp_exp([value or 0.0 for value in config["swiglu_limits"]])
            shared = config["swiglu_limits_shared"]
            writer.add_swiglu_clamp_shexp([value or 0.0 for value in shared])
        case "mimo2":
            keys = config["num_key_value_heads"]
            writer.add_sliding_window_pattern(are_windowed)
            writer.add_head_count_kv([keys * (1 + windowed) for windowed in are_windowed])
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["v_head_dim"])
            writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
        case _:
            writer.add_uint32("laguna.attention.sliding_window_pattern", 2)
            writer.add_head_count(config["num_attention_heads_per_layer"])
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
            writer.add_expert_weights_scale(config["moe_routed_scaling_factor"])
            writer.add_rope_dimension_count_swa(config["head_dim"])


def _add_qwen_4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add what `Qwen4ExpTextModel.set_gguf_parameters` adds, with the numbers that a safetensors file's hashes have."""
    ngrams = ModelConfig.from_dict(config).layers[config["ple_layer_ids"][0] - 1].ngrams
    assert ngrams is not None
    ratio, kinds = config["indexer_compress_ratio"], config["layer_types"]
    writer.add_indexer_head_count(config["indexer_n_heads"])
    writer.add_indexer_key_length(config["indexer_head_dim"])
    writer.add_indexer_top_k(config["indexer_budget"])
    writer.add_embedding_length_per_layer_input(ngrams.head_size)
    offsets = [sum(ngrams.sizes[:head]) for head in range(len(ngrams.sizes))]
    for name, value in {
        "hyper_connection.count": config["hc_count"],
        "hyper_connection.low_rank": config["hc_lowrank"],
        "ple.ngram_size": config["ngram_size"],
        "ple.heads_per_ngram": config["heads_per_ngram"],
        "ple.conv_kernel": config["ple_conv_kernel_size"],
        "ple.eos_token_id": ngrams.end,
    }.items():
        writer.add_uint32(f"qwen4exp.{name}", value)
    for name, values in {
        "attention.compress_ratios": [0 if kind == "linear_attention" else ratio for kind in kinds],
        "ple.layers": [config["ple_layer_ids"][0] - 1],
        "ple.layer_multipliers": list(ngrams.multipliers),
        "ple.head_offsets": offsets,
        "ple.head_vocab_sizes": list(ngrams.sizes),
    }.items():
        kinds_of = gguf.GGUFValueType
        writer.add_key_value(f"qwen4exp.{name}", values, kinds_of.ARRAY, kinds_of.UINT64)


def _add_state_spaces(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add what `GraniteHybridModel.set_gguf_parameters` adds."""
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    heads = config["num_key_value_heads"]
    kinds = config["layer_types"]
    writer.add_head_count_kv(
        [heads if "attention" in kind and "linear" not in kind else 0 for kind in kinds]
    )
    writer.add_rope_scaling_finetuned(config.get("position_embedding_type") == "rope")


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


def _add_nemotron(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add what `NemotronHModel.set_gguf_parameters` adds."""
    kinds, heads = config["layers_block_type"], config["mamba_num_heads"]
    sizes = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
    writer.add_head_count_kv(
        [config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds]
    )
    writer.add_feed_forward_length([sizes.get(kind, 0) for kind in kinds])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * config["mamba_head_dim"])
    if "moe" in kinds:
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def _add_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    own = config.get("per_layer_config", {}).get(
        str(windows.index(False))
    )  # of fewer than ten layers
    full = config | (own or {})
    heads = {True: config["num_key_value_heads"], False: full["num_key_value_heads"]}
    writer.add_head_count_kv([heads[windowed] for windowed in windows])
    writer.add_key_length(full["head_dim"])
    writer.add_value_length(full["head_dim"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windows)
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    shared, size = config.get("num_kv_shared_layers", 0), config["intermediate_size"]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    if config.get("use_double_wide_mlp"):
        first = len(windows) - shared
        writer.add_feed_forward_length([size * (1 + (at >= first)) for at in range(len(windows))])
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
        shared = config.get("n_shared_experts") or config.get("num_shared_experts", 0)
        writer.add_expert_shared_count(shared)
        writer.add_leading_dense_block_count(config.get("first_k_dense_replace", 0))
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        if config["n_group"] is not None:
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
