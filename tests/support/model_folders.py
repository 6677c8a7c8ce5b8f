"""Folders of small random models in the Hugging Face layout, made without torch."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.manifest import TensorEntry, make_manifest
from potluck.model.quantized import Quantization
from potluck.store.registry import LocalModel

CONFIG: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
GPTQ: Mapping[str, object] = {
    "quantization_config": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 16,
        "sym": True,
        "desc_act": False,
    }
}
LONG_AGO = 1_000_000_000  # seconds; files this old are trusted not to change any more

Tensors = dict[str, NDArray[np.float32 | np.float16 | np.int32]]


def tensors_of(config: Mapping[str, object] = CONFIG, *, seed: int = 0) -> Tensors:
    """Return random values for every tensor that the config describes."""
    shape = ModelConfig.from_dict(config)
    named = shape.stage_tensors(range(shape.num_layers), embedding=True, head=True)
    random = np.random.default_rng(seed)
    return {name: random.random(size, dtype=np.float32) for name, size in named.items()}


def gptq_tensors(config: Mapping[str, object]) -> Tensors:
    """Return the tensors of a GPTQ model; its projections contain zeros."""
    tensors: Tensors = {}
    for name, values in tensors_of(config).items():
        if "_proj." not in name:
            tensors[name] = values
            continue
        rows, inputs = values.shape
        prefix = name.removesuffix("weight")
        tensors[prefix + "qweight"] = np.zeros((inputs // 8, rows), np.int32)
        tensors[prefix + "qzeros"] = np.zeros((inputs // 16, rows // 8), np.int32)
        tensors[prefix + "scales"] = np.zeros((inputs // 16, rows), np.float16)
        tensors[prefix + "g_idx"] = np.zeros(inputs, np.int32)
    return tensors


def make_folder(
    folder: Path,
    *,
    config: Mapping[str, object] = CONFIG,
    tensors: Tensors | None = None,
    shards: int = 1,
) -> Path:
    """Write a model. With several shards, also write an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    if tensors is None:
        tensors = tensors_of(config)
    if shards == 1:
        _save(tensors, folder / "model.safetensors")
        return folder
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        some = dict(list(tensors.items())[number::shards])
        _save(some, folder / name)
        weight_map |= dict.fromkeys(some, name)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, object]) -> None:
    index = {"metadata": {}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def settle(path: Path, seconds: int = LONG_AGO) -> None:
    """Give a file an old time: a new file might still change, so it would not be trusted."""
    os.utime(path, (seconds, seconds))


def _save(tensors: Tensors, path: Path) -> None:
    save_file(tensors, path, metadata={"format": "pt"})
    settle(path)


def in_fp8(model: LocalModel) -> LocalModel:
    """The same model, its matrices stored in a byte a weight and a scale."""
    entries: list[TensorEntry] = []
    for entry in model.manifest.tensors:
        if len(entry.shape) < 2 or ".layers." not in entry.name:
            entries.append(entry)
            continue
        size = entry.nbytes // 4
        weight = dataclasses.replace(entry, dtype="F8_E4M3", nbytes=size)
        scale = TensorEntry(
            name=f"{entry.name}_scale",
            dtype="F32",
            shape=(1,),
            digest=Digest(hashlib.sha256(entry.name.encode()).hexdigest()),
            nbytes=4,
        )
        entries += [weight, scale]
    source = next(iter(model.sources.values()))
    return dataclasses.replace(
        model,
        manifest=make_manifest(model.manifest.config, entries),
        config=dataclasses.replace(model.config, quantization=Quantization(method="fp8")),
        sources={e.digest: dataclasses.replace(source, nbytes=e.nbytes) for e in entries},
    )
