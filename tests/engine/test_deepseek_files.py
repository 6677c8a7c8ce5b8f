"""DeepSeek V4 as it is published: names of its own, experts of FP4 and other matrices of FP8, with scales of powers of two."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import Pipeline, Reference, difference, make_model, off, stored_tensors
from torch import Tensor

from potluck.errors import BrokenModelError
from potluck.model.config import ModelConfig

_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_BLOCK = 32  # rows and inputs of a scale, of FP8
_RENAMED = {
    "model.embed_tokens.weight": "embed.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}


def published(folder: Path) -> Reference:
    """Write a model as DeepSeek does; the one of `transformers` has the numbers that the files then mean."""
    made = make_model("deepseek 4", folder, changes={"hidden_size": 64, "intermediate_size": 32})
    generator = torch.Generator().manual_seed(1)
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        own = _RENAMED.get(name, name.removeprefix("model."))
        own = own.replace(".attn.norm.", ".attn.kv_norm.")
        if ".experts." in name:
            stored |= _fp4(own.removesuffix(".weight"), values, generator, meant)
        elif own.endswith(("wq_a.weight", "wq_b.weight", "wkv.weight", "w1.weight", "wo_b.weight")):
            stored |= _fp8(own.removesuffix(".weight"), values, meant)
        else:
            stored[own] = values
    stored["mtp.0.norm.weight"] = torch.ones(64)  # of a part that is not read
    save_file(stored, folder / "model.safetensors")
    about = folder / "config.json"
    config = json.loads(about.read_text(encoding="utf-8"))
    config |= {
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [_BLOCK, _BLOCK],
        },
    }
    about.write_text(json.dumps(config), encoding="utf-8")
    _put(made, meant)
    return dataclasses.replace(
        made, config=ModelConfig.from_dict(config), tensors=stored_tensors(folder)
    )


def _fp4(
    name: str, values: Tensor, generator: torch.Generator, meant: dict[str, Tensor]
) -> dict[str, Tensor]:
    rows, inputs = values.shape
    codes = torch.randint(16, (rows, inputs), generator=generator, dtype=torch.uint8)
    exponents = torch.randint(120, 125, (rows, inputs // 32), generator=generator)
    signs = 1 - 2 * (codes >> 3).float()
    scales = (exponents - 127).float().exp2().repeat_interleave(32, 1)
    meant[name] = _VALUES[(codes & 7).long()] * signs * scales
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int8)
    powers = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
    return {f"{name}.weight": packed.contiguous(), f"{name}.scale": powers}


def _fp8(name: str, values: Tensor, meant: dict[str, Tensor]) -> dict[str, Tensor]:
    rows, inputs = values.shape
    exponents = torch.full((-(-rows // _BLOCK), -(-inputs // _BLOCK)), 124)
    whole = (exponents - 127).float().exp2()
    scales = whole.repeat_interleave(_BLOCK, 0)[:rows].repeat_interleave(_BLOCK, 1)[:, :inputs]
    octets = (values / scales).to(torch.float8_e4m3fn)
    meant[name] = octets.float() * scales
    powers = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
    return {f"{name}.weight": octets, f"{name}.scale": powers}


def _put(made: Reference, meant: dict[str, Tensor]) -> None:
    """Give the model of `transformers` these numbers."""
    parts = {"wq_a": "q_a_proj", "wq_b": "q_b_proj", "wkv": "kv_proj", "wo_b": "o_b_proj"}
    for name, values in meant.items():
        _, layer, block, *rest = name.split(".")
        whole = made.model.model.layers[int(layer)]
        with torch.no_grad():
            if block == "attn":
                target = whole.self_attn
                for step in rest[:-1]:
                    if step == "indexer":
                        target = target.compressor.indexer
                    elif step == "compressor" and rest[0] != "indexer":
                        target = target.compressor
                getattr(target, parts[rest[-1]]).weight.copy_(values)
            elif rest[0] == "shared_experts":
                whole.mlp.shared_experts.gate_proj.weight.copy_(values)
            else:
                expert, matrix = int(rest[1]), rest[2]
                experts, size = whole.mlp.experts, 32
                if matrix == "w2":
                    experts.down_proj[expert].copy_(values)
                else:
                    first = 0 if matrix == "w1" else size
                    experts.gate_up_proj[expert, first : first + size].copy_(values)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return published(tmp_path_factory.mktemp("deepseek"))


def test_the_numbers_of_the_files_are_computed_with(reference: Reference) -> None:
    ids = reference.prompt(40)

    logits = Pipeline(reference, [2]).run_in_pieces(ids, (30,) + (1,) * 10)

    assert difference(logits, reference.logits(ids)) < 1e-5


def test_experts_keep_their_four_bits(reference: Reference) -> None:
    weights = reference.weights(range(2, 3), scheme="int8")
    expert = weights.blocks[0].mlp.experts[0]  # type: ignore[union-attr]

    assert expert.down.weight.format.name == "mxfp4"  # type: ignore[union-attr]


def test_eight_bits_are_near(reference: Reference) -> None:
    ids = reference.prompt(40)

    logits = Pipeline(reference, [2], "int8").run(ids)

    assert off(logits, reference.logits(ids)) < 0.1


def test_a_table_that_names_experts_which_are_not_there_is_refused(tmp_path: Path) -> None:
    made = make_model("deepseek 4", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.ffn.gate.tid2eid"][3, 1] = 6
    save_file(tensors, tmp_path / "model.safetensors")
    broken = dataclasses.replace(made, tensors=stored_tensors(tmp_path))

    with pytest.raises(BrokenModelError, match="names experts beyond the 6"):
        broken.weights(range(1))
