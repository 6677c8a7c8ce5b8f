"""Write small models as GGUF, as llama.cpp's converter does (`conversion/*.py` there)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "Llama4ForCausalLM": "llama4",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma4ForCausalLM": "gemma4",
    "Glm4ForCausalLM": "glm4",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "Olmo2ForCausalLM": "olmo2",
    "GraniteForCausalLM": "granite",
    "GemmaForCausalLM": "gemma",
    "Olmo3ForCausalLM": "olmo2",
    "SeedOssForCausalLM": "seed_oss",
    "Ministral3ForCausalLM": "mistral3",
    "SmolLM3ForCausalLM": "smollm3",
    "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2",
    "Exaone4ForCausalLM": "exaone4",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "OlmoeForCausalLM": "olmoe",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "Glm4MoeForCausalLM": "glm4moe",
    "Dots1ForCausalLM": "dots1",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Glm4MoeLiteForCausalLM": "deepseek2",
    "GlmMoeDsaForCausalLM": "glm-dsa",
    "GptOssForCausalLM": "gpt-oss",
}
INTERLEAVED = ("llama", "granite", "smollm3", "mistral3")
WHOLE_NORMS = ("gemma", "gemma2", "gemma3")
# What Gemma 4's converter calls the tensors that have no names of their own.
GEMMA_4 = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "layer_scalar": "layer_output_scale.weight",
}
TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a")


def write_gguf(
    folder: Path,
    path: Path,
    *,
    kind: str = "F32",
    kinds: Mapping[str, str] | None = None,
    joins_experts: bool = False,
    fields: Mapping[str, object] | None = None,
    vocabulary: bool = True,
) -> Path:
    """Write the model of a folder as one file.

    Args:
        folder: contains `config.json` and `model.safetensors`.
        path: the file to write.
        kind: the type of matrices; F16 replaces it where rows are no multiple of its blocks.
        kinds: other types, by the tensors' names in the file.
        joins_experts: whether gates and ups of all experts are one tensor, as newer files have them.
        fields: fields to add to the file, or to replace.
        vocabulary: whether to add a small vocabulary of SentencePiece's kind.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = FAMILIES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, architecture)
    _add_sizes(writer, config, architecture)
    if vocabulary:
        add_sentence_piece(writer, TOKENS)
    for name, value in (fields or {}).items():
        _add_field(writer, name, value)
    tensors = _tensors(folder, config, architecture)
    for name, values in (_joined(tensors) if joins_experts else tensors).items():
        _add_tensor(writer, name, values, (kinds or {}).get(name, kind))
    finish(writer)
    return path


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sentence_piece(writer: gguf.GGUFWriter, tokens: Sequence[str]) -> None:
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types(
        [kinds.get(token, 6 if token.startswith("<0x") else 1) for token in tokens]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _add_field(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list() | tuple():
            writer.add_array(name, value)
        case _:
            raise TypeError(name)


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
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
    if architecture != "gemma4":
        writer.add_head_count_kv(config["num_key_value_heads"])
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(_theta(everywhere, head_dim))
    writer.add_vocab_size(config["vocab_size"])
    if architecture in ("deepseek2", "glm-dsa"):
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
        case "qwen3moe" | "qwen2moe" | "olmoe" | "minimax-m2" | "glm4moe" | "dots1" | "exaone-moe":
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
        case "deepseek2" | "glm-dsa":
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


def _converted(name: str, values: Tensor, config: dict[str, Any]) -> dict[str, Tensor]:
    """Change a tensor as `Qwen3NextModel` does, and the one of Qwen3.5 that reorders value heads."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    group, key = heads // keys, config["linear_key_head_dim"]
    value, last = config["linear_value_head_dim"], name.split("linear_attn.")[-1]
    if last == "in_proj_qkvz.weight":
        sizes = [key, key, group * value, group * value]
        parts = values.view(keys, sum(sizes), -1).split(sizes, 1)
        q, k, v, z = (part.flatten(0, 1) for part in parts)
        before = name.removesuffix("qkvz.weight")
        return {f"{before}qkv.weight": torch.cat([q, k, v]), f"{before}z.weight": z}
    if last == "A_log":
        values = -values.exp()
    elif last == "conv1d.weight":
        values = values.squeeze(1)
    elif last.endswith("norm.weight") and last != "norm.weight":
        values = values + 1
    if config["architectures"][0] != "Qwen3NextForCausalLM" and last != name:
        tiled = torch.arange(heads).view(keys, group).t().flatten()

        def reordered(some: Tensor) -> Tensor:
            return some.unflatten(0, (heads, -1))[tiled].flatten(0, 1)

        if last in ("in_proj_qkv.weight", "conv1d.weight"):
            both = 2 * keys * key
            values = torch.cat([values[:both], reordered(values[both:])])
        elif last == "out_proj.weight":
            values = reordered(values.t()).t()
        elif last != "norm.weight":
            values = reordered(values)
    return {name.replace(".dt_bias", ".dt_proj.bias"): values}


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


def _tensors(folder: Path, config: dict[str, Any], architecture: str) -> dict[str, Tensor]:
    """Return the tensors by their names in the file."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config["num_hidden_layers"])
    tensors: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    stored = load_file(folder / "model.safetensors")
    if architecture == "gpt-oss":
        stored = _split_experts(stored)
    for name, tensor in stored.items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        values = tensor.float()
        if architecture in INTERLEAVED and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            values = permute(values, config[heads])
        if architecture in WHOLE_NORMS and name.endswith("norm.weight"):
            values = values + 1
        if architecture == "gemma4" and (found := _gemma4_name(name)) is not None:
            tensors[found] = values
            continue
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            before, _, matrix = name.rpartition(".")
            values = values.mT if architecture == "llama4" else values
            halves = values.chunk(2, 1) if matrix == "gate_up_proj" else (values,)
            parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
            for part, some in zip(parts, halves, strict=True):
                tensors[_name(names, f"{before}.{part}.weight")] = some
            continue
        if ".experts." in name and architecture != "gpt-oss":
            before, _, after = name.partition(".experts.")
            number, _, rest = after.partition(".")
            experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = values
            continue
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]
        if name.endswith("kv_b_proj.weight"):
            for part, matrices in _ordered(values, config).items():
                tensors[_name(names, name.replace("kv_b_proj", part))] = matrices
            continue
        name = name.replace("_correction_bias", "_correction.bias")
        if "linear_num_key_heads" in config:
            for part, some in _converted(name, values, config).items():
                tensors[_name(names, part)] = some
            continue
        tensors[_name(names, name)] = values
    for name, matrices in experts.items():
        stacked = torch.stack([matrices[index] for index in range(len(matrices))])
        tensors[_name(names, name)] = stacked
    rope = config.get("rope_parameters") or {}
    if architecture == "gemma4":
        tensors["rope_freqs.weight"] = _gemma4_factors(config)
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _frequency_factors(config, rope)
    if rope.get("rope_type") == "longrope":
        tensors["rope_factors_long.weight"] = torch.tensor(rope["long_factor"])
        tensors["rope_factors_short.weight"] = torch.tensor(rope["short_factor"])
    return tensors


def _joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put the gates of experts before their ups, in one tensor."""
    joined: dict[str, Tensor] = {}
    for name, values in tensors.items():
        if "ffn_gate_exps" in name:
            both = values, tensors[name.replace("gate", "up")]
            joined[name.replace("gate", "gate_up")] = torch.cat(both, 1)
        elif "ffn_up_exps" not in name:
            joined[name] = values
    return joined


def _ordered(values: Tensor, config: dict[str, Any]) -> dict[str, Tensor]:
    """Cut the expansion of latents as `DeepseekV2Model.modify_tensors` does."""
    sizes = config["qk_nope_head_dim"], config["v_head_dim"]
    whole = values.view(config["num_attention_heads"], sum(sizes), -1)
    keys, own = whole.split(sizes, 1)
    return {"k_b_proj": keys.transpose(1, 2), "v_b_proj": own}


def _split_experts(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return all, with gates and ups apart and matrices as (out, in), as `GptOssModel` does."""
    split: dict[str, Tensor] = {}
    for name, values in stored.items():
        if ".experts." not in name:
            split[name + ".weight" if name.endswith("sinks") else name] = values
            continue
        matrix = name.removesuffix("_bias")
        end = ".weight" if matrix == name else ".bias"
        rows = values if values.dim() == 2 else values.mT
        if matrix.endswith("gate_up_proj"):
            for place, part in enumerate(("gate_proj", "up_proj")):
                split[matrix.replace("gate_up_proj", part) + end] = rows[:, place::2].contiguous()
        else:
            split[matrix + end] = rows.contiguous()
    return split


def _gemma4_name(name: str) -> str | None:
    """The name of a tensor that the map of names lacks, or that is stacked already."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    stacked = {f"experts.{one}_proj": f"ffn_{one}_exps.weight" for one in ("gate_up", "down")}
    found = (GEMMA_4 | stacked).get(rest)
    return None if found is None else f"blk.{layer}.{found}"


def _gemma4_factors(config: dict[str, Any]) -> Tensor:
    """As `Gemma4Model.generate_extra_tensors` makes them."""
    full = config["per_layer_config"][str(config["layer_types"].index("full_attention"))]
    part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    turning, pairs = int(full["head_dim"] * part / 2), full["head_dim"] // 2
    return torch.tensor([1.0] * turning + [1e30] * (pairs - turning))


def _name(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, (".weight", ".bias"))
    assert found is not None, name
    return found


def permute(rows: Tensor, heads: int) -> Tensor:
    """Reorder rows as `LlamaModel.permute` does."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _frequency_factors(config: dict[str, Any], rope: dict[str, Any]) -> Tensor:
    """Compute factors as `LlamaModel.generate_extra_tensors` does."""
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))
    original = rope["original_max_position_embeddings"]
    factors: list[float] = []
    for frequency in frequencies.tolist():
        wavelength = 2 * np.pi / frequency
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return torch.tensor(factors)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Tensor, kind: str) -> None:
    array = values.contiguous().numpy()
    dtype = gguf.GGMLQuantizationType[kind]
    if (
        values.dim() < 2
        or name.endswith(".bias")
        or "ffn_gate_inp" in name
        or name.startswith("rope_")
    ):
        writer.add_tensor(name, array.astype(np.float32))
        return
    if array.shape[-1] % gguf.GGML_QUANT_SIZES[dtype][0]:
        dtype = gguf.GGMLQuantizationType.F16
    writer.add_tensor(name, quantise_blocks(array, dtype), raw_dtype=dtype)


def quantise_blocks(array: np.ndarray, dtype: gguf.GGMLQuantizationType) -> np.ndarray:
    """(…, width) → (…, bytes). Makes Q4_K too, which the `gguf` package cannot."""
    if dtype != gguf.GGMLQuantizationType.Q4_K:
        return gguf.quants.quantize(array, dtype)
    groups = array.reshape(-1, 8, 32)
    least, most = groups.min(-1).clip(max=0), groups.max(-1)
    scales, sixths = _in_six_bits((most - least) / 15)
    minima, six_minima = _in_six_bits(-least)
    worth, less = (
        (factor.astype(np.float32) * six)[..., None]
        for factor, six in ((scales, sixths), (minima, six_minima))
    )
    quotients = np.divide(groups + less, worth, out=np.zeros_like(groups), where=worth != 0)
    integers = quotients.round().clip(0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    low, high = (
        np.concatenate((sixths[:, part], six_minima[:, part]), -1)
        for part in (slice(0, 4), slice(4, 8))
    )  # layout of `get_scale_min_k4` of ggml-quants.c
    factors = (low | high >> 4 << 6, sixths[:, 4:] & 15 | (six_minima[:, 4:] & 15) << 4)
    parts = (
        scales.view(np.uint8),
        minima.view(np.uint8),
        *factors,
        (integers[:, :, 0] | integers[:, :, 1] << 4).reshape(-1, 128),
    )
    return np.concatenate(parts, -1).reshape(*array.shape[:-1], -1)


def _in_six_bits(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise (blocks, 8) to six bits: return factors (blocks, 1) in f16, and integers."""
    factor = (numbers.max(-1, keepdims=True) / 63).astype(np.float16)
    quotients = np.divide(numbers, factor, out=np.zeros_like(numbers), where=factor != 0)
    return factor, quotients.round().clip(0, 63).astype(np.uint8)
