"""A model that is stored quantised computes as the same weights in plain numbers do."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import quantised_tensors as stored
import torch
from quantised_tensors import Quantised
from safetensors.torch import load_file, save_file
from tiny_models import CPU, Pipeline, Reference, off, stored_tensors
from torch import Tensor

from potluck.engine.layers.linear import PackedLinear
from potluck.engine.loading.weights import load_weights
from potluck.errors import BrokenModelError, IntegrityError
from potluck.model.nearest import nearest_schemes
from potluck.model.quantized import Quantization

MakeReference = Callable[..., Reference]

TOKENS = 20
Format = tuple[Quantization, Callable[[Tensor], Quantised]]
FORMATS: dict[str, Format] = {
    "gptq": (
        Quantization(method="gptq", bits=4, group_size=24, zero_offset=1),
        lambda w: stored.gptq(w, group=24, symmetric=False),
    ),
    "awq": (
        Quantization(method="awq", bits=4, group_size=24),
        lambda w: stored.awq(w, group=24),
    ),
    "fp8": (
        Quantization(method="fp8", block=(32, 32)),
        lambda w: stored.fp8(w, block=(32, 32), dtype=torch.float32),
    ),
    "packed": (
        Quantization(method="packed", bits=4, group_size=24),
        lambda w: stored.packed(w, group=24),
    ),
}
every_format = pytest.mark.parametrize("name", FORMATS)


def quantised(
    reference: Reference, stored_as: str | Format, folder: Path
) -> tuple[Reference, Reference]:
    """Return the model with quantised layers, and one with the same values in plain numbers."""
    quantization, make = FORMATS[stored_as] if isinstance(stored_as, str) else stored_as
    parts: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for tensor, weight in load_file(reference.tensors[0].path).items():
        if ".layers." not in tensor or weight.dim() < 2:
            parts[tensor] = plain[tensor] = weight
            continue
        made = make(weight)
        prefix = tensor.removesuffix("weight")
        parts |= {prefix + part: values for part, values in made.parts.items()}
        plain[tensor] = made.values.contiguous()
    for kind, tensors in (("parts", parts), ("plain", plain)):
        (folder / kind).mkdir()
        save_file(tensors, folder / kind / "model.safetensors")
    config = dataclasses.replace(reference.config, quantization=quantization)
    return (
        dataclasses.replace(reference, config=config, tensors=stored_tensors(folder / "parts")),
        dataclasses.replace(reference, tensors=stored_tensors(folder / "plain")),
    )


@every_format
def test_logits_are_those_of_its_values(
    make_reference: MakeReference, tmp_path: Path, name: str
) -> None:
    model, plain = quantised(make_reference("llama"), name, tmp_path)
    ids = model.prompt(TOKENS)

    assert torch.equal(Pipeline(model, [2]).run(ids), Pipeline(plain, [2]).run(ids))


@every_format
def test_it_can_be_held_in_a_scheme(
    make_reference: MakeReference, tmp_path: Path, name: str
) -> None:
    model, plain = quantised(make_reference("llama"), name, tmp_path)
    ids = model.prompt(TOKENS)

    assert off(Pipeline(model, [], "int8").run(ids), Pipeline(plain).run(ids)) < 0.08


OFFSETS: dict[str, Format] = {
    "gptq": (
        Quantization(method="gptq", bits=4, group_size=32, zero_offset=1, is_symmetric=False),
        lambda w: stored.gptq(w, symmetric=False),
    ),
    "awq": (
        Quantization(method="awq", bits=4, group_size=32, is_symmetric=False),
        stored.awq,
    ),
    "packed": (
        Quantization(method="packed", bits=4, group_size=32, is_symmetric=False),
        lambda w: stored.packed(w, symmetric=False),
    ),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_zero_points_are_held_in_4_bits(llama: Reference, tmp_path: Path, name: str) -> None:
    model, plain = quantised(llama, OFFSETS[name], tmp_path)
    ids, other = model.prompt(TOKENS), copy.deepcopy(model.model)
    values = load_file(plain.tensors[0].path)
    other.load_state_dict(values, strict=False)
    exact = dataclasses.replace(plain, model=other).logits(ids)  # of transformers
    assert off(Pipeline(plain).run(ids), exact) < 1e-5

    whole = Pipeline(model, [], "int4-offset").run_in_pieces(ids, (16, 1, 1, 1, 1))
    cut = Pipeline(model, [1, 3], "int4-offset").run_in_pieces(ids, (16, 1, 1, 1, 1))

    assert nearest_schemes(model.config)[0] == "int4-offset"
    assert torch.equal(whole, cut)
    assert off(whole, exact) < 1.5 * off(Pipeline(model, [], "int8").run(ids), exact)
    weights = load_weights(
        model.config, range(1), embedding=False, head=False, tensors=model.tensors,
        scheme="int4-offset", device=CPU,
    )  # fmt: skip
    output = weights.blocks[0].mixer_matrices[1]
    original = values["model.layers.0.self_attn.o_proj.weight"]
    assert isinstance(output, PackedLinear)
    error = (output.weight.dequantise() - original).abs().max()
    assert error <= 2**-9 * original.abs().max()  # only scales and offsets are rounded


def test_progress_counts_every_part(make_reference: MakeReference, tmp_path: Path) -> None:
    model, _ = quantised(make_reference("llama"), "gptq", tmp_path)
    seen: list[tuple[int, int]] = []

    load_weights(
        model.config,
        range(4),
        embedding=True,
        head=True,
        tensors=model.tensors,
        scheme="f32",
        device=CPU,
        progress=lambda done, total: seen.append((done, total)),
    )

    total = sum(tensor.nbytes for tensor in model.tensors)
    assert seen[-1] == (total, total)


def test_a_damaged_part_is_named(make_reference: MakeReference, tmp_path: Path) -> None:
    model, _ = quantised(make_reference("llama"), "gptq", tmp_path)
    victim = next(t for t in model.tensors if t.name.endswith("1.mlp.up_proj.qzeros"))
    with victim.path.open("r+b") as file:
        file.seek(victim.offset)
        file.write(b"\x55")

    with pytest.raises(IntegrityError, match=r"1\.mlp\.up_proj\.qzeros") as caught:
        Pipeline(model)
    assert caught.value.data["digest"] == victim.digest


def test_a_missing_part_is_named(make_reference: MakeReference, tmp_path: Path) -> None:
    model, _ = quantised(make_reference("llama"), "gptq", tmp_path)
    rest = tuple(t for t in model.tensors if not t.name.endswith("2.self_attn.k_proj.scales"))

    with pytest.raises(BrokenModelError, match=r"2\.self_attn\.k_proj\.scales"):
        Pipeline(dataclasses.replace(model, tensors=rest))
