"""The tensors of a GGUF file, from those in safetensors, as llama.cpp's converter turns them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from potluck.model.naming import decoder_names

INTERLEAVED = ("llama", "granite", "smollm3", "mistral3")
WHOLE_NORMS = ("gemma", "gemma2", "gemma3")
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


def tensors_of(folder: Path, config: dict[str, Any], architecture: str) -> dict[str, Tensor]:
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
        if architecture == "kimi-linear":  # `KimiLinearModel.modify_tensors`
            values = -values.exp() if name.endswith("A_log") else values
            name = decoder_names([name])[name].replace(".dt_bias", ".dt_proj.bias")
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
