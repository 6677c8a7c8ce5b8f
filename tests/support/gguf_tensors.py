"""The tensors of a GGUF file, from those in safetensors, as llama.cpp's converter turns them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from potluck.model.naming import decoder_names

INTERLEAVED = (
    "llama",
    "arcee",
    "granite",
    "granitemoe",
    "granitehybrid",
    "smollm3",
    "mistral3",
    "muse-glimmer",
)
NAMED_AS = {
    "deepseek32": "glm-dsa", "laguna": "step35", "qwen4exp": "qwen35moe", "minimax-m3": "minimax-m2",
    "hy_v3": "hunyuan-moe", "mellum": "qwen3moe", "muse-glimmer": "gemma3",
}  # in the package  # fmt: skip
WHOLE_NORMS = ("nemotron", "gemma", "gemma2", "gemma3", "step35", "minimax-m3", "muse-glimmer")
PREFIXES = {  # of the text of a larger model
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head": "lm_head",
}
WITH_BESIDE = ("minimax-m3", "hy_v3", "mellum", "muse-glimmer")
# What converters call the tensors of their layers that the package has no names for.
BESIDE = {
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    **{
        f"block_sparse_moe.shared_experts.{part}_proj.weight": f"ffn_{part}_shexp.weight"
        for part in ("gate", "up", "down")
    },
    **{
        f"self_attn.index_{part}.weight": f"indexer.{part}.weight"
        for part in ("q_proj", "k_proj", "q_norm", "k_norm")
    },
    "self_attn.gate_proj.weight": "attn_gate.weight",
    "mlp.router.gate.weight": "ffn_gate_inp.weight",
    "mlp.expert_bias": "exp_probs_b",
}
# What Gemma 4's converter calls the tensors that have no names of their own.
GEMMA_4 = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "layer_scalar": "layer_output_scale.weight",
}


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


SPACES = tuple(
    f"{block}.{part}"
    for block in ("mixer", "mamba")
    for part in ("D", "dt_bias", "conv1d.weight", "norm.weight")
)


def _multiplied(name: str, values: Tensor, config: dict[str, Any]) -> Tensor:
    """Change a tensor as `FalconH1Model.modify_tensors` does."""
    first = config["attention_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    for part, factor in (
        ("down_proj", down), ("gate_proj", gate), ("q_proj", first), ("v_proj", first),
        ("k_proj", first * config["key_multiplier"]), ("o_proj", config["attention_out_multiplier"]),
        ("out_proj", config["ssm_out_multiplier"]), ("lm_head", config["lm_head_multiplier"]),
        ("embed_tokens", config["embedding_multiplier"]), ("in_proj", config["ssm_in_multiplier"]),
    ):  # fmt: skip
        if f"{part}.weight" in name:
            values = values * factor
    if "in_proj" in name:
        zones = values.split([inner, inner, shared, shared, config["mamba_n_heads"]])
        factors = zip(zones, config["ssm_multipliers"], strict=True)
        values = torch.cat([zone * factor for zone, factor in factors])
    return values


def _state_space(name: str, values: Tensor, config: dict[str, Any]) -> tuple[str, Tensor]:
    """Change a tensor as `Mamba2Model.modify_tensors` does."""
    if name.endswith(".A_log"):
        values = -values.exp().view(-1, 1)
    elif name.endswith(".D"):
        values = values.view(-1, 1)
    elif name.endswith(".conv1d.weight"):
        values = values.squeeze(1)
    elif name.endswith(".norm.weight"):
        values = values.view(config.get("n_groups") or config["mamba_n_groups"], -1)
    return name.replace(".dt_bias", ".dt_proj.bias"), values


def tensors_of(folder: Path, config: dict[str, Any], architecture: str) -> dict[str, Tensor]:
    """Return the tensors by their names in the file."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    named_as = kinds[NAMED_AS.get(architecture, architecture)]
    names = gguf.get_tensor_name_map(named_as, config["num_hidden_layers"])
    tensors: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    stored = load_file(folder / "model.safetensors")
    if architecture == "gpt-oss":
        stored = _split_experts(stored)
    for name, tensor in stored.items():
        for prefix, ours in PREFIXES.items():
            name = name.replace(prefix, ours)
        is_text = name.startswith(("model.", "backbone.", "lm_head"))
        if not is_text or "vision" in name or "projector" in name:
            continue  # of a larger model
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        values = tensor.float()
        if architecture in INTERLEAVED and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            values = permute(values, config[heads])
        is_whole = architecture == "muse-glimmer" and name == "model.norm.weight"
        if architecture in WHOLE_NORMS and name.endswith("norm.weight") and not is_whole:
            values = values + 1
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        if architecture == "muse-glimmer" and rest == "self_attn.q_proj.weight":
            factors = {"q": config["qk_scale_factor"], "k": 1.0}
            for part, factor in factors.items():
                norm = torch.full((config["head_dim"],), factor)
                tensors[f"blk.{layer}.attn_{part}_norm.weight"] = norm
        if ".act_fn." in name:  # which `add_learned` writes
            continue
        if architecture in WITH_BESIDE and rest in BESIDE:
            tensors[f"blk.{layer}.{BESIDE[rest]}"] = values
            continue
        if architecture == "step35" and ".moe." in name and "_proj" in name:
            tensors[f"blk.{name.split('.')[2]}.ffn_{name.split('.')[-2][:-5]}_exps.weight"] = values
            continue
        if name.endswith("experts.e_score_correction_bias"):
            tensors[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = values
            continue
        if architecture == "qwen4exp" and (own := _qwen_4(name, values, config)) is not None:
            for part, some in own.items():
                tensors[part] = torch.cat([tensors[part], some]) if part in tensors else some
            continue
        if architecture.startswith("granite"):
            for part, some in _granite(name, values, config).items():
                tensors[part if part.startswith("blk.") else _name(names, part)] = some
            continue
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
        if architecture == "glm4" and "mrope_section" in (config.get("rope_parameters") or {}):
            values = _halved(name, values, config)
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]
        if name.endswith("kv_b_proj.weight"):
            for part, matrices in _ordered(values, config).items():
                tensors[_name(names, name.replace("kv_b_proj", part))] = matrices
            continue
        if architecture == "falcon-h1":
            values = _multiplied(name, values, config)
        if architecture == "kimi-linear":  # `KimiLinearModel.modify_tensors`
            name = decoder_names([name])[name].replace(".dt_bias", ".dt_proj.bias")
        name = name.replace("_correction_bias", "_correction.bias")
        if name.endswith(("router_bias", "expert_bias")):
            name += ".bias"
        if name.endswith("attention_sink_bias"):
            name += ".weight"
        if name.endswith("conv.conv.weight"):
            values = values.squeeze(1)
        if (".A_log" in name and "linear_attn" not in name) or name.endswith(SPACES):
            name, values = _state_space(name, values, config)
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


def _halved(name: str, values: Tensor, config: dict[str, Any]) -> Tensor:
    """Queries and keys as `Glm4Model.normal_to_neox` orders them."""
    if not name.endswith(("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")):
        return values
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    turning = int(size * config["rope_parameters"].get("partial_rotary_factor", 0.5))
    heads = values.reshape(-1, size, *values.shape[1:])
    order = [*range(0, turning, 2), *range(1, turning, 2), *range(turning, size)]
    return heads[:, order].reshape(values.shape)


QWEN_4 = {
    "hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}  # fmt: skip


def _qwen_4(name: str, values: Tensor, config: dict[str, Any]) -> dict[str, Tensor] | None:
    """Change a tensor as `Qwen4ExpTextModel` does; None: it is one of Qwen3.5's."""
    parts = name.split(".")
    blk, last = f"blk.{parts[2]}." if ".layers." in name else "", parts[-2]
    if name.endswith(
        ("norm.weight", ".norm_key.weight", ".norm_query.weight", ".norm_conv.weight")
    ):
        values = values + 1
    if "hyper_connection" in name:
        block = {"a": "hc_attn", "m": "hc_ffn", "h": "output_hc"}[parts[-3][0]]
        return {f"{blk}{block}_{QWEN_4[last]}.weight": values}
    if ".shard_" in name:
        return {"per_layer_token_embd.weight": values}
    if ".ple." in name:
        if not name.endswith(".weight"):
            return {}  # numbers of hashes, which are fields
        values = values.squeeze(1) if last == "conv1d" else values
        return {f"{blk}ple_{last.removesuffix('_proj')}.weight": values}
    if last == "index_qk_proj":
        rows = config["indexer_n_heads"] * config["indexer_head_dim"]
        both = zip("qk", (values[:rows], values[rows:]), strict=True)
        return {f"{blk}indexer.{part}_proj.weight": some for part, some in both}
    if ".indexer." in name:
        return {f"{blk}indexer.{last[0]}_norm.weight": values}
    return None


def _granite(name: str, values: Tensor, config: dict[str, Any]) -> dict[str, Tensor]:
    """Change a tensor as `GraniteMoeModel` does."""
    blk = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gates, ups = values.chunk(2, 1)
        return {f"{blk}ffn_gate_exps.weight": gates, f"{blk}ffn_up_exps.weight": ups}
    end = "_shexp.weight" if config.get("num_local_experts") else ".weight"
    if name.endswith("shared_mlp.input_linear.weight"):
        gates, ups = values.chunk(2)
        return {f"{blk}ffn_gate{end}": gates, f"{blk}ffn_up{end}": ups}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {f"{blk}ffn_down{end}": values}
    if name.endswith((".A_log", *SPACES)):
        name, values = _state_space(name, values, config)
    return {name: values}


def joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put the gates of experts before their ups, in one tensor."""
    joined: dict[str, Tensor] = {}
    for name, values in tensors.items():
        if "ffn_gate_exps" in name:
            both = values, tensors[name.replace("gate", "up")]
            joined[name.replace("gate", "gate_up")] = torch.cat(both, 1)
        elif "ffn_up_exps" not in name:
            joined[name] = values
    return joined


def joined_heads(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put queries, keys and values of a layer in one tensor."""
    joined: dict[str, Tensor] = {}
    for name, values in tensors.items():
        if ".attn_q." in name:
            all_parts = [tensors[name.replace("attn_q", f"attn_{part}")] for part in "qkv"]
            joined[name.replace("attn_q", "attn_qkv")] = torch.cat(all_parts)
        elif ".attn_k." not in name and ".attn_v." not in name:
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
    layer = str(config["layer_types"].index("full_attention"))
    full = config | config.get("per_layer_config", {}).get(layer, {})
    part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    turning, pairs = int(full["head_dim"] * part / 2), full["head_dim"] // 2
    return torch.tensor([1.0] * turning + [1e30] * (pairs - turning))


def _name(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, (".weight", ".bias"))
    if found is None:  # of experts, which the converter stacks under this name
        merged = name.replace("backbone.", "model.").replace(".mixer.experts.", ".mlp.experts.")
        for own, usual in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            merged = merged.replace(f".experts.{own}", f".experts.{usual}")
        found = names.get_name(merged, (".weight", ".bias"))
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


def add_learned(writer: gguf.GGUFWriter, folder: Path, layers: int) -> None:
    """Add what `ApertusModel.modify_tensors` writes in place of tensors."""
    stored = load_file(folder / "model.safetensors")
    adds = {
        "alpha_p": writer.add_xielu_alpha_p,
        "alpha_n": writer.add_xielu_alpha_n,
        "beta": writer.add_xielu_beta,
        "eps": writer.add_xielu_eps,
    }
    for name, add in adds.items():
        add([float(stored[f"model.layers.{at}.mlp.act_fn.{name}"]) for at in range(layers)])
