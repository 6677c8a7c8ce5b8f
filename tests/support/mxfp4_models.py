"""Small models of gpt-oss as they are published: with experts of MXFP4."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import Reference, make_model, stored_tensors
from torch import Tensor
from transformers import GptOssForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from potluck.model.config import ModelConfig

WHOLE_GROUPS = {"hidden_size": 64, "intermediate_size": 96}


def make_mxfp4(folder: Path, *, seed: int = 0, **changes: Any) -> Reference:
    """Write such a model, with changes, and read it with `transformers`, which makes numbers of it."""
    made = make_model("gpt-oss", folder, seed=seed, changes={**WHOLE_GROUPS, **changes})
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        if values.dim() == 3:
            count, inputs, rows = values.shape
            tensors[f"{name}_blocks"] = torch.randint(
                256, (count, rows, inputs // 32, 16), generator=generator, dtype=torch.uint8
            )
            # Of numbers up to 0.75, and now and then of far smaller ones.
            exponents = torch.randint(120, 125, (count, rows, inputs // 32), generator=generator)
            exponents[0, 0, 0] = 0
            tensors[f"{name}_scales"] = exponents.to(torch.uint8)
        else:
            tensors[name] = values
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    about = folder / "config.json"
    config = json.loads(about.read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    about.write_text(json.dumps(config), encoding="utf-8")
    theirs = GptOssForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    theirs.config._attn_implementation = "eager"
    return dataclasses.replace(
        made,
        model=theirs.eval(),
        config=ModelConfig.from_dict(config),
        tensors=stored_tensors(folder),
    )


def in_plain_numbers(reference: Reference, folder: Path) -> Path:
    """Write the same model with the numbers that `transformers` has of it; return the folder."""
    about = reference.tensors[0].path.with_name("config.json")
    config = json.loads(about.read_text(encoding="utf-8"))
    del config["quantization_config"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    numbers = {name: values.contiguous() for name, values in reference.model.state_dict().items()}
    save_file(numbers, folder / "model.safetensors", {"format": "pt"})
    return folder
