"""A tensor quantised into a file is what a stage makes of it, always the same, or nothing at all."""

import dataclasses
import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import quantised_tensors as stored
import torch
from prequantised import prequantised
from quantised_tensors import Quantised, random_matrix
from safetensors.torch import save_file
from tiny_models import Pipeline, Reference, stored_tensors
from torch import Tensor
from weight_formats import every_format

from potluck.engine.kernels import Kernels, PackedWeight, ReferenceKernels, best_kernels
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.loading.quantise import QuantisedFile, quantise
from potluck.engine.loading.reading import PIECE, Reader, StoredTensor
from potluck.engine.loading.targets import PackedTarget
from potluck.errors import BrokenModelError, DiskFullError, IntegrityError
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, PackedFormat
from potluck.model.quantized import Quantization
from potluck.model.schemes import PACKED_SCHEMES, PACKING_VERSION, Scheme

MakeReference = Callable[..., Reference]

KERNELS: dict[str, Kernels] = {
    **{path.name: GeneratedKernels(path) for path in host_paths()},
    "reference": ReferenceKernels(),
}
FILE = "model.safetensors"
FORMATS: dict[str, tuple[Quantization, Callable[[Tensor], Quantised]]] = {
    "gptq": (
        Quantization(method="gptq", bits=4, group_size=32, zero_offset=1),
        lambda weight: stored.gptq(weight, group=32, symmetric=False),
    ),
    "awq": (
        Quantization(method="awq", bits=4, group_size=16),
        lambda weight: stored.awq(weight, group=16),
    ),
    "fp8": (
        Quantization(method="fp8", block=(32, 32)),
        lambda weight: stored.fp8(weight, block=(32, 32), dtype=torch.float32),
    ),
    "packed": (
        Quantization(method="packed", bits=4, group_size=32),
        lambda weight: stored.packed(weight, group=32),
    ),
}


def matrix(folder: Path, *shape: int, dtype: torch.dtype = torch.bfloat16) -> StoredTensor:
    """Write a matrix into a file, with numbers of very different size."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = torch.arange(math.prod(shape))
    values = (numbers * 7919 % 1021 - 510) * 2 ** (numbers % 7)  # whole numbers: exact everywhere
    save_file({"matrix": (values / 512).view(shape).to(dtype)}, folder / FILE)
    return stored_tensors(folder)[0]


def quantised_matrix(
    llama: Reference,
    tensor: StoredTensor,
    held: PackedFormat,
    path: Path,
    kernels: Kernels | None = None,
) -> QuantisedFile:
    kernels = kernels or best_kernels()
    rows, width = tensor.shape
    return quantise(llama.config, (rows, width), held, [tensor], path, kernels)


def assert_equal_logits(model: Reference, folder: Path, scheme: Scheme) -> None:
    ids = model.prompt(20)
    folder.mkdir()
    packed = prequantised(model, scheme, folder)

    assert torch.equal(
        Pipeline(packed, [2], scheme).run(ids), Pipeline(model, [2], scheme).run(ids)
    )
    assert sum(t.nbytes for t in packed.tensors) < sum(t.nbytes for t in model.tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "scheme"),
    [
        *(("llama", scheme) for scheme in PACKED_SCHEMES),
        ("qwen 2", "int4-head8"),
        ("qwen 3 moe", "int4"),
    ],
)
def test_a_stage_computes_with_it_as_if_it_had_packed_itself(
    make_reference: MakeReference, tmp_path: Path, variant: str, scheme: Scheme
) -> None:
    assert_equal_logits(make_reference(variant), tmp_path / "packed", scheme)


@pytest.mark.parametrize("weight_format", [INT4, INT4_OFFSET, INT4_SUPER])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_stored_quantised_goes_the_same_way(
    llama: Reference, tmp_path: Path, name: str, weight_format: PackedFormat
) -> None:
    quantization, make = FORMATS[name]
    config = dataclasses.replace(llama.config, quantization=quantization)
    prefix = "model.layers.0.mlp.up_proj."
    made = make(random_matrix(72, 64))
    save_file({prefix + part: values for part, values in made.parts.items()}, tmp_path / FILE)
    parts = stored_tensors(tmp_path)

    quantise(config, (72, 64), weight_format, parts, tmp_path / "packed", best_kernels())

    in_memory = PackedWeight.empty(72, 64, weight_format)
    target = PackedTarget(in_memory, 0, 72, best_kernels())
    Reader(config, 0, None, 1).fill(parts, target)
    assert (tmp_path / "packed").read_bytes() == in_memory.data.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(16, 32), (37, 70), (1, 1)])
@every_format
def test_the_bytes_are_those_of_every_kernel_path(
    llama: Reference,
    tmp_path: Path,
    weight_format: PackedFormat,
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    tensor = matrix(tmp_path, *shape, dtype=dtype)
    made = {
        name: quantised_matrix(llama, tensor, weight_format, tmp_path / name, kernels)
        for name, kernels in KERNELS.items()
    }

    assert len(set(made.values())) == 1
    for name, file in made.items():
        data = (tmp_path / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (file.digest, file.nbytes)


def test_a_matrix_of_many_pieces_is_the_one_packed_at_once(
    llama: Reference, tmp_path: Path
) -> None:
    tensor = matrix(tmp_path, 3 * PIECE // 512 + 21, 256)
    data = bytearray(tensor.path.read_bytes()[tensor.offset :])
    values: Tensor = torch.frombuffer(data, dtype=torch.bfloat16).view(tensor.shape)

    quantised_matrix(llama, tensor, INT4, tmp_path / "packed")

    at_once = best_kernels().pack(values, INT4).data
    assert (tmp_path / "packed").read_bytes() == at_once.numpy().tobytes()


def test_the_version_names_these_bytes(llama: Reference, tmp_path: Path) -> None:
    """Digests are remembered for a version: other bytes need another `PACKING_VERSION`."""
    tensor = matrix(tmp_path, 48, 96)
    made = [
        quantised_matrix(llama, tensor, held, tmp_path / held.name)
        for held in (INT4, INT4_OFFSET, INT8, INT4_SUPER)
    ]
    digests = [file.digest[:16] for file in made]

    assert (PACKING_VERSION, digests) == (
        2,
        ["a3b0adacbacc27de", "bc55761e485c3aaf", "1ff9d0e067217aed", "b7baf5073900f6e1"],
    )


def test_a_damaged_source_leaves_nothing_behind(llama: Reference, tmp_path: Path) -> None:
    tensor = matrix(tmp_path, 64, 64)
    with tensor.path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(b"\x55")

    with pytest.raises(IntegrityError) as caught:
        quantised_matrix(llama, tensor, INT4, tmp_path / "packed")
    assert caught.value.data["digest"] == tensor.digest
    assert not (tmp_path / "packed").exists()


def test_what_is_no_number_is_refused(llama: Reference, tmp_path: Path) -> None:
    save_file({"matrix": torch.full((16, 32), math.inf)}, tmp_path / FILE)

    with pytest.raises(BrokenModelError, match="A weight in matrix is inf"):
        quantised_matrix(llama, stored_tensors(tmp_path)[0], INT8, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_a_file_that_cannot_be_written_is_the_disk_s_fault(
    llama: Reference, tmp_path: Path
) -> None:
    tensor = matrix(tmp_path, 16, 32)

    with pytest.raises(DiskFullError, match="cannot be written"):
        quantised_matrix(llama, tensor, INT4, tmp_path / "nowhere" / "packed")
