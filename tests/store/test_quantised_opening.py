"""Models as people have them on disk, stored quantised: opened from a folder, they compute what their values say."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import coded_tensors as coded
import pytest
import torch
from quantised_tensors import Quantised, fp8_whole
from safetensors.torch import load_file, save_file
from tiny_models import Pipeline, Reference, loaded, make_model, off, stored_tensors
from torch import Tensor

from potluck.errors import BrokenModelError
from potluck.model.nearest import nearest_schemes
from potluck.store.registry import open_model

TOKENS = 20
pytestmark = pytest.mark.slow
SIZES: Mapping[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
MOE = {**SIZES, "moe_intermediate_size": 64}

Make = Callable[[str, Tensor], Quantised | None]
"""From a matrix's name and values to how it is stored; None: in plain numbers."""


def layers_only(make: Callable[[Tensor], Quantised]) -> Make:
    return lambda name, weight: make(weight) if "_proj." in name else None


def mixed(name: str, weight: Tensor) -> Quantised | None:
    if "_proj." not in name:
        return None
    return fp8_whole(weight) if "self_attn" in name else coded.nvfp4(weight, divides=True)


def mlx_mixed(name: str, weight: Tensor) -> Quantised:
    has_more = "down_proj" in name or "lm_head" in name
    return coded.mlx(weight, bits=6 if has_more else 4)


MLX = {"quantization": {"group_size": 32, "bits": 4}}
SIX = {"group_size": 32, "bits": 6}
CASES: dict[str, tuple[Make, Mapping[str, Any]]] = {
    "mlx": (lambda name, weight: coded.mlx(weight), MLX),
    "mlx, 8 bits": (
        lambda name, weight: coded.mlx(weight, bits=8),
        {"quantization": {"group_size": 32, "bits": 8}},
    ),
    "mlx, 3 bits": (
        lambda name, weight: coded.mlx(weight, bits=3),
        {"quantization": {"group_size": 32, "bits": 3}},
    ),
    "mlx, more bits in some": (
        mlx_mixed,
        {
            "quantization": {
                **MLX["quantization"],
                "lm_head": SIX,
                **{f"model.layers.{i}.mlp.down_proj": SIX for i in range(2)},
            }
        },
    ),
    "mlx, mxfp4": (
        lambda name, weight: coded.mxfp4(weight, is_mlx=True),
        {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
    ),
    "nvfp4, compressed-tensors": (
        layers_only(lambda weight: coded.nvfp4(weight, divides=True)),
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}},
            }
        },
    ),
    "nvfp4, modelopt": (
        layers_only(lambda weight: coded.nvfp4(weight, divides=False)),
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
    ),
    "nvfp4 and fp8": (
        mixed,
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mixed-precision",
                "config_groups": {
                    "a": {"weights": {"type": "float"}, "format": "nvfp4-pack-quantized"},
                    "b": {
                        "weights": {"type": "float", "num_bits": 8},
                        "format": "float-quantized",
                    },
                },
            }
        },
    ),
    "mxfp8": (
        layers_only(coded.mxfp8),
        {"quantization_config": {"quant_method": "mxfp8"}},
    ),
    "fp8, powers of two": (
        layers_only(coded.e8m0_blocks),
        {
            "quantization_config": {
                "quant_method": "fp8",
                "scale_fmt": "ue8m0",
                "weight_block_size": [32, 32],
            }
        },
    ),
    "nf4": (
        layers_only(lambda weight: coded.bitsandbytes(weight, nested=True)),
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    ),
    "int8 of bitsandbytes": (
        layers_only(coded.bitsandbytes_8),
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
    ),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Path]:
    folder = tmp_path_factory.mktemp("source")
    return make_model("llama", folder, changes=SIZES), folder


def write(
    source: Path, folder: Path, make: Make, config: Mapping[str, Any], *, stacks: bool = False
) -> Path:
    """Write a model stored so, and beside it the same values in plain numbers; return the folder of these.

    `stacks`: the experts of a layer are in one tensor, as MLX has them.
    """
    parts: dict[str, Tensor] = {}
    worth: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        made = make(name, weight) if weight.dim() == 2 else None
        stored = {"weight": weight} if made is None else made.parts
        worth[name] = weight if made is None else made.values.contiguous()
        prefix = name.removesuffix("weight")
        parts |= {prefix + part: values.contiguous() for part, values in stored.items()}
    folder.mkdir()
    plain = folder.with_name("plain")
    plain.mkdir()
    save_file(stacked(parts) if stacks else parts, folder / "model.safetensors")
    save_file(worth, plain / "model.safetensors")
    said = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    (folder / "tokenizer.json").write_text("{}")
    return plain


def stacked(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    lists: dict[str, list[Tensor]] = {}
    for name, part in parts.items():
        before, mark, after = name.partition(".experts.")
        if mark:
            lists.setdefault(f"{before}.switch_mlp.{after.partition('.')[2]}", []).append(part)
        else:
            found[name] = part
    views = {torch.uint32: torch.int32}  # which torch can stack
    for name, several in lists.items():
        dtype = several[0].dtype
        found[name] = torch.stack([one.view(views.get(dtype, dtype)) for one in several]).view(
            dtype
        )
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_its_values_say(
    source: tuple[Reference, Path], tmp_path: Path, case: str
) -> None:
    reference, folder = source
    make, config = CASES[case]
    plain = write(folder, tmp_path / "model", make, config)
    ids = reference.prompt(TOKENS)
    expected = Pipeline(Reference(reference.model, reference.config, stored_tensors(plain))).run(
        ids
    )

    model = open_model(tmp_path / "model", cache_dir=tmp_path / "cache")

    opened = loaded(model, reference)
    assert torch.equal(Pipeline(opened, [1]).run(ids), expected)
    best = nearest_schemes(model.config)[0]
    assert best == ("int4-offset" if case in IN_4_BITS else "int8")
    assert (
        off(Pipeline(opened, [1], best).run(ids), expected) < 0.06
    )  # inputs of products have 8 bits


IN_4_BITS = ("mlx", "mlx, 3 bits", "mlx, more bits in some")


@pytest.mark.parametrize("variant", ["qwen 3 moe", "mixtral"])
def test_experts_of_mlx_are_in_one_tensor(tmp_path: Path, variant: str) -> None:
    (tmp_path / "source").mkdir()
    changes = MOE if variant == "qwen 3 moe" else SIZES
    reference = make_model(variant, tmp_path / "source", changes=changes)

    def make(name: str, weight: Tensor) -> Quantised:
        return coded.mlx(weight, bits=8 if ".gate." in name else 4)

    plain = write(tmp_path / "source", tmp_path / "model", make, MLX, stacks=True)
    rename(tmp_path / "model" / "model.safetensors")
    ids = reference.prompt(TOKENS)
    expected = Pipeline(Reference(reference.model, reference.config, stored_tensors(plain))).run(
        ids
    )

    model = open_model(tmp_path / "model", cache_dir=tmp_path / "cache")

    opened = loaded(model, reference)
    assert torch.equal(Pipeline(opened, [1]).run(ids), expected)
    assert off(Pipeline(opened, [1], "int4-offset").run(ids), expected) < 0.06


def rename(path: Path) -> None:
    """Give the matrices of experts MLX's names, which are the same in all families."""
    names = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
    found: dict[str, Tensor] = {}
    for name, part in load_file(path).items():
        for theirs, of_mlx in names.items():
            name = name.replace(theirs, of_mlx)
        found[name] = part
    save_file(found, path)


def test_a_config_of_modelopt_may_be_in_a_file_of_its_own(
    source: tuple[Reference, Path], tmp_path: Path
) -> None:
    reference, folder = source
    make, _ = CASES["nvfp4, modelopt"]
    write(folder, tmp_path / "model", make, {})
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps(said))

    model = open_model(tmp_path / "model", cache_dir=tmp_path / "cache")

    assert model.config.quantization is not None
    assert model.config.quantization.method == "fp4"
    assert Pipeline(loaded(model, reference)).run(reference.prompt(3)).isfinite().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [64, 63]}, "another shape"),
        ({"blocksize": 32}, "other blocks"),
        ({"blocksize": "x"}, "quant_state that cannot be read"),
        ({"nested_blocksize": 7}, "other blocks of scales"),
    ],
)
def test_notes_that_contradict_the_tensors_are_refused(
    source: tuple[Reference, Path], tmp_path: Path, change: dict[str, object], words: str
) -> None:
    reference, folder = source

    def make(weight: Tensor) -> Quantised:
        made = coded.bitsandbytes(weight, nested=True)
        name = "weight.quant_state.bitsandbytes__nf4"
        notes = {**json.loads(bytes(made.parts[name].numpy())), **change}
        written = bytearray(json.dumps(notes).encode())
        made.parts[name] = torch.frombuffer(written, dtype=torch.uint8)
        return made

    write(folder, tmp_path / "model", layers_only(make), CASES["nf4"][1])
    model = open_model(tmp_path / "model", cache_dir=tmp_path / "cache")

    with pytest.raises(BrokenModelError, match=words):
        Pipeline(loaded(model, reference))
