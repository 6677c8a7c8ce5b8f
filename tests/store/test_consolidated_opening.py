"""A model in Mistral's own layout computes what the same model in that of Hugging Face does."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from quantised_tensors import fp8_whole
from safetensors.torch import load_file, save_file
from tiny_models import Pipeline, Reference, loaded, stored_tensors
from torch import Tensor

from potluck.errors import BrokenModelError
from potluck.hub.found import list_models
from potluck.store.registry import open_model

Make = Callable[[str], tuple[Reference, Path]]

TOKENS = 24
NAMES = {
    "model.embed_tokens.": "tok_embeddings.",
    "model.norm.": "norm.",
    "lm_head.": "output.",
    "model.layers.": "layers.",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "block_sparse_moe": "feed_forward",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def in_pairs(weight: Tensor, head: int) -> Tensor:
    """Rows in the order of Mistral's rope: the inverse of `permute_for_rope` in `transformers`."""
    rows, inputs = weight.shape
    return weight.view(rows // head, 2, head // 2, inputs).transpose(1, 2).reshape(rows, inputs)


def theirs(name: str) -> str:
    for ours, other in NAMES.items():
        name = name.replace(ours, other)
    return name


def write_consolidated(
    source: Path, folder: Path, *, shards: int = 1, fp8: bool = False
) -> dict[str, Tensor]:
    """Write the weights of a folder in Mistral's layout; return what they are worth under their own names."""
    config = json.loads((source / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    worth: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        parts = {"weight": weight}
        if fp8 and name.endswith("_proj.weight"):
            made = fp8_whole(weight)
            parts, weight = made.parts, made.values.contiguous()
        worth[name] = weight
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            parts["weight"] = in_pairs(parts["weight"], head)
        prefix = theirs(name.removesuffix("weight"))
        for part, values in parts.items():
            suffix = {"weight": "weight", "weight_scale": "qscale_weight"}[part]
            stored[prefix + suffix] = values.contiguous()
    stored["vision_encoder.ln_pre.weight"] = torch.ones(3)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    save(stored, folder, shards)
    return worth


def save(stored: Mapping[str, Tensor], folder: Path, shards: int) -> None:
    if shards == 1:
        save_file(dict(stored), folder / "consolidated.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"consolidated-{number + 1:05}-of-{shards:05}.safetensors"
        some = dict(list(stored.items())[number::shards])
        save_file(some, folder / name)
        weight_map |= dict.fromkeys(some, name)
    (folder / "consolidated.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map})
    )


def params_of(source: Path, **more: Any) -> str:
    config = json.loads((source / "config.json").read_text())
    named = {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "hidden_dim": "intermediate_size",
        "norm_eps": "rms_norm_eps",
        "head_dim": "head_dim",
        "vocab_size": "vocab_size",
        "sliding_window": "sliding_window",
        "tied_embeddings": "tie_word_embeddings",
    }
    params = {ours: config[name] for ours, name in named.items() if config.get(name) is not None}
    params["rope_theta"] = config["rope_parameters"]["rope_theta"]
    return json.dumps({**params, **more})


def compare(reference: Reference, folder: Path, tmp_path: Path) -> None:
    model = open_model(folder, cache_dir=tmp_path / "cache")
    ids = reference.prompt(TOKENS)

    logits = Pipeline(loaded(model, reference), [1]).run(ids)

    torch.testing.assert_close(logits, reference.logits(ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["mistral, window", "mistral, no window", "mixtral"])
@pytest.mark.parametrize("shards", [1, 3])
def test_logits_are_those_of_transformers(
    make: Make, tmp_path: Path, variant: str, shards: int
) -> None:
    reference, source = make(variant)
    folder = tmp_path / "model"
    write_consolidated(source, folder, shards=shards)
    moe = {"moe": {"num_experts": 5, "num_experts_per_tok": 2}} if variant == "mixtral" else {}
    (folder / "params.json").write_text(params_of(source, **moe))

    compare(reference, folder, tmp_path)


def test_ministral_3_scales_its_queries(make: Make, tmp_path: Path) -> None:
    reference, source = make("ministral 3, alone")
    rope = json.loads((source / "config.json").read_text())["rope_parameters"]
    folder = tmp_path / "model"
    write_consolidated(source, folder)
    original = rope["original_max_position_embeddings"]
    yarn = {"factor": rope["factor"], "original_max_position_embeddings": original}
    for ours, name in (("beta", "beta_fast"), ("alpha", "beta_slow")):
        if name in rope:
            yarn[ours] = rope[name]
    is_scaled = "mscale" not in rope or rope.get("attention_factor") is None
    if "mscale" in rope and "mscale_all_dim" in rope:
        is_scaled = False
    scaling = {"beta": rope["llama_4_scaling_beta"], "original_max_position_embeddings": original}
    params = params_of(source, yarn={**yarn, "apply_scale": is_scaled}, llama_4_scaling=scaling)
    (folder / "params.json").write_text(params)

    compare(reference, folder, tmp_path)


def test_the_config_of_the_other_layout_does_too(make: Make, tmp_path: Path) -> None:
    reference, source = make("mistral, window")
    folder = tmp_path / "model"
    write_consolidated(source, folder)
    shutil.copy(source / "config.json", folder)

    compare(reference, folder, tmp_path)


def test_weights_in_fp8_are_what_their_scales_say(make: Make, tmp_path: Path) -> None:
    reference, source = make("mistral, window")
    folder, plain = tmp_path / "model", tmp_path / "plain"
    worth = write_consolidated(source, folder, fp8=True)
    quantization = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    (folder / "params.json").write_text(params_of(source, quantization=quantization))
    plain.mkdir()
    save_file(worth, plain / "model.safetensors")
    ids = reference.prompt(TOKENS)

    model = open_model(folder, cache_dir=tmp_path / "cache")

    found = Pipeline(loaded(model, reference), [1]).run(ids)
    same = Reference(reference.model, reference.config, stored_tensors(plain))
    assert torch.equal(found, Pipeline(same, [1]).run(ids))


def test_beside_the_other_layout_it_is_not_read(make: Make, tmp_path: Path) -> None:
    reference, source = make("mistral, window")
    folder = tmp_path / "model"
    write_consolidated(source, folder)
    (folder / "consolidated.safetensors").write_bytes(b"damaged")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(source / name, folder)

    compare(reference, folder, tmp_path)
    (found,) = list_models([folder])
    assert found.nbytes == (source / "model.safetensors").stat().st_size


def test_a_missing_shard_is_named(make: Make, tmp_path: Path) -> None:
    _, source = make("mistral, window")
    folder = tmp_path / "model"
    write_consolidated(source, folder, shards=3)
    (folder / "params.json").write_text(params_of(source))
    assert [model.path for model in list_models([folder])] == [folder]
    (folder / "consolidated-00002-of-00003.safetensors").unlink()

    with pytest.raises(BrokenModelError, match=re.escape("lacks consolidated-00002-of-00003")):
        open_model(folder, cache_dir=tmp_path / "cache")
    assert list_models([folder]) == []
