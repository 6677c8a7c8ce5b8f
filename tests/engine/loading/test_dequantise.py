"""What is stored quantised has the values that its format says, and stays as it is where that can be."""

from collections.abc import Callable, Sequence
from typing import Any

import coded_tensors as coded
import pytest
import quantised_tensors as stored
import torch
from largest_tensor import LargestTensor
from quantised_tensors import Quantised, random_matrix
from torch import Tensor

from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.loading.dequantise import PartRows, fill_from_parts, rows_part
from potluck.engine.loading.targets import PackedTarget, PairedTarget, Target, TensorTarget
from potluck.errors import BrokenModelError
from potluck.model.formats import INT4, INT4_OFFSET, INT8, PackedFormat
from potluck.model.quantized import MAX_GROUP, Quantization
from potluck.model.row_order import PairedRows

# More rows than a piece has, an odd number of them, and groups that are cut off.
ROWS, INPUTS = 4120, 160
Make = Callable[[Tensor], Quantised]


def gptq(**facts: Any) -> Quantization:
    usual: dict[str, Any] = {"bits": 4, "group_size": 32, "zero_offset": 1}
    return Quantization(method="gptq", **(usual | facts))


MLX = Quantization(method="mlx", bits=4, group_size=32, is_symmetric=False)
FP4 = Quantization(method="fp4", bits=4, group_size=16, is_symmetric=False, is_affine=False)
NF4 = Quantization(method="bitsandbytes", bits=4, group_size=64, is_symmetric=False)
FORMATS: dict[str, tuple[Quantization, Make]] = {
    "gptq": (gptq(), stored.gptq),
    "gptq, 2 bits": (gptq(bits=2), lambda w: stored.gptq(w, bits=2)),
    "gptq, 8 bits": (gptq(bits=8), lambda w: stored.gptq(w, bits=8)),
    "gptq, zero points": (gptq(), lambda w: stored.gptq(w, symmetric=False)),
    "gptq, 8 bits, zero points": (
        gptq(bits=8),
        lambda w: stored.gptq(w, bits=8, symmetric=False),
    ),
    "gptq 2": (gptq(zero_offset=0), lambda w: stored.gptq(w, symmetric=False, version=2)),
    "gptq, reordered": (gptq(), lambda w: stored.gptq(w, reordered=True)),
    "gptq, whole rows": (gptq(group_size=None), lambda w: stored.gptq(w, group=INPUTS)),
    "gptq, cut off": (gptq(group_size=128), lambda w: stored.gptq(w, group=128)),
    "gptq, small groups": (gptq(group_size=16), lambda w: stored.gptq(w, group=16)),
    "awq": (Quantization(method="awq", bits=4, group_size=32), stored.awq),
    "awq, 64": (
        Quantization(method="awq", bits=4, group_size=64),
        lambda w: stored.awq(w, group=64),
    ),
    "awq, whole rows": (
        Quantization(method="awq", bits=4, group_size=None),
        lambda w: stored.awq(w, group=INPUTS),
    ),
    "packed": (Quantization(method="packed", bits=4, group_size=32), stored.packed),
    "packed, 8 bits, zero points": (
        Quantization(method="packed", bits=8, group_size=32, is_symmetric=False),
        lambda w: stored.packed(w, bits=8, symmetric=False),
    ),
    "packed, zero points": (
        Quantization(method="packed", bits=4, group_size=32, is_symmetric=False),
        lambda w: stored.packed(w, symmetric=False),
    ),
    "fp8, blocks": (
        Quantization(method="fp8", block=(128, 128)),
        lambda w: stored.fp8(w, block=(128, 128), dtype=torch.float32),
    ),
    "fp8, small blocks, bf16": (
        Quantization(method="fp8", block=(24, 40)),
        lambda w: stored.fp8(w, block=(24, 40), dtype=torch.bfloat16),
    ),
    "fp8, rows": (
        Quantization(method="fp8"),
        lambda w: stored.fp8(w, block=None, dtype=torch.bfloat16),
    ),
    "fp8, whole": (Quantization(method="fp8"), stored.fp8_whole),
    "integers": (Quantization(method="integers"), stored.int8),
    "gptq, 3 bits": (gptq(bits=3), lambda w: stored.gptq(w, bits=3)),
    "gptq, 3 bits, zero points": (gptq(bits=3), lambda w: stored.gptq(w, bits=3, symmetric=False)),
    "mlx": (MLX, coded.mlx),
    "mlx, 64, f16": (MLX, lambda w: coded.mlx(w[:, :128], group=64, dtype=torch.float16)),
    "mlx, 128": (MLX, lambda w: coded.mlx(w[:, :128], group=128)),
    "mlx, 2 bits": (MLX, lambda w: coded.mlx(w, bits=2)),
    "mlx, 3 bits": (MLX, lambda w: coded.mlx(w, bits=3)),
    "mlx, 5 bits": (MLX, lambda w: coded.mlx(w, bits=5)),
    "mlx, 6 bits": (MLX, lambda w: coded.mlx(w, bits=6)),
    "mlx, 8 bits": (MLX, lambda w: coded.mlx(w, bits=8)),
    "mlx, mxfp4": (MLX, lambda w: coded.mxfp4(w, is_mlx=True)),
    "mlx, mxfp8": (MLX, lambda w: coded.mxfp8(w, is_mlx=True)),
    "nvfp4, compressed-tensors": (FP4, lambda w: coded.nvfp4(w, divides=True)),
    "nvfp4, modelopt": (FP4, lambda w: coded.nvfp4(w, divides=False)),
    "mxfp4": (Quantization(method="fp4", bits=4, group_size=32), coded.mxfp4),
    "mxfp8": (Quantization(method="fp8", block=(1, 32)), coded.mxfp8),
    "fp8, powers of two": (Quantization(method="fp8", block=(32, 32)), coded.e8m0_blocks),
    "nf4": (NF4, coded.bitsandbytes),
    "nf4, double": (NF4, lambda w: coded.bitsandbytes(w, nested=True)),
    "nf4, blocks across rows": (NF4, lambda w: coded.bitsandbytes(w, block=128)),
    "fp4 of bitsandbytes": (NF4, lambda w: coded.bitsandbytes(w, kind="fp4")),
    "int8 of bitsandbytes": (Quantization(method="integers"), coded.bitsandbytes_8),
    "integers, groups": (Quantization(method="integers", group_size=32), coded.integers),
    "integers, 4 bits": (
        Quantization(method="integers", bits=4, group_size=32),
        lambda w: coded.integers(w, bits=4),
    ),
    "integers, zero points": (
        Quantization(method="integers", group_size=32, is_symmetric=False),
        lambda w: coded.integers(w, symmetric=False),
    ),
}
every_format = pytest.mark.parametrize(
    ("quantization", "make"), FORMATS.values(), ids=FORMATS.keys()
)


def packed_target(
    rows: int, held: PackedFormat, width: int = INPUTS
) -> tuple[PackedWeight, PackedTarget]:
    weight = PackedWeight.empty(rows, width, held)
    return weight, PackedTarget(weight, 0, rows, ReferenceKernels())


def as_read(part: Tensor) -> Tensor:
    """A stored tensor as the loader reads it."""
    views = {torch.uint32: torch.int32, torch.float8_e8m0fnu: torch.uint8}
    return part.view(views.get(part.dtype, part.dtype))


def fill_all(target: Target, quantization: Quantization, parts: dict[str, Tensor]) -> None:
    """Fill a target from all the tensors that its matrix is stored in."""
    parts = {name.rpartition(".")[2]: part for name, part in parts.items()}
    if (name := rows_part(quantization, parts)) is None:
        fill_from_parts(target, quantization, parts)
        return
    rows, others = parts[name], {other: as_read(p) for other, p in parts.items() if other != name}
    form = PartRows(
        quantization,
        others,
        dtype=as_read(rows).dtype,
        stored_width=rows.numel() // target.rows,
        width=target.width,
    )
    form.fill(target, 0, rows.view(torch.uint8).view(-1).numpy().data)


@every_format
def test_values_are_those_of_the_format(quantization: Quantization, make: Make) -> None:
    made = make(random_matrix(ROWS, INPUTS))
    filled = torch.full(made.values.shape, torch.nan)

    fill_all(TensorTarget(filled), quantization, made.parts)

    assert torch.equal(filled, made.values)


@every_format
def test_rows_in_pairs_come_into_order_in_every_format(
    quantization: Quantization, make: Make
) -> None:
    pairs = PairedRows(head=40, first=8, count=20)
    made = make(random_matrix(ROWS, INPUTS))
    filled = torch.full(made.values.shape, torch.nan)

    fill_all(PairedTarget(TensorTarget(filled), pairs), quantization, made.parts)

    expected = made.values.unflatten(0, (-1, 40))[:, pairs.order].flatten(0, 1)
    assert torch.equal(filled, expected)


# The formats whose integers `int4` keeps, and those that only `int8` keeps. Where a scale is not one of 32
# inputs in a row, or an integer needs nine bits, the values are packed anew.
KEPT_IN_4 = {
    "gptq", "gptq, 2 bits", "gptq, whole rows", "gptq, cut off", "packed", "gptq, 3 bits",
    "gptq, 3 bits, zero points", "integers, 4 bits",
}  # fmt: skip
KEPT_IN_8 = {
    "mlx, mxfp4", "mxfp4",
    "gptq, 8 bits", "gptq, zero points", "gptq 2", "awq", "awq, 64", "awq, whole rows", "integers",
    "packed, zero points",
}  # fmt: skip


@pytest.mark.parametrize("weight_format", [INT4, INT8])
@pytest.mark.parametrize("name", FORMATS)
def test_integers_that_fit_are_packed_as_they_are(name: str, weight_format: PackedFormat) -> None:
    quantization, make = FORMATS[name]
    made = make(random_matrix(48, INPUTS))
    packed, target = packed_target(48, weight_format, made.values.shape[1])

    fill_all(target, quantization, made.parts)

    found = packed.dequantise()
    assert torch.equal(found, made.values) == (
        name in KEPT_IN_4 or (name in KEPT_IN_8 and weight_format is INT8)
    )
    error = (found - made.values).norm() / made.values.norm()
    assert error < (0.1 if weight_format is INT4 else 0.007)


# Which are integers of 4 bits for each 32 inputs; and those whose zero points differ.
WITH_OFFSETS = {
    "gptq, 3 bits, zero points",
    "mlx",
    "mlx, 64, f16",
    "mlx, 128",
    "mlx, 2 bits",
    "mlx, 3 bits",
    "gptq, zero points",
    "gptq 2",
    "awq",
    "awq, 64",
    "awq, whole rows",
    "packed, zero points",
}
FOUR = WITH_OFFSETS | KEPT_IN_4


@pytest.mark.parametrize("name", FORMATS)
def test_zero_points_are_packed_as_offsets(name: str) -> None:
    quantization, make = FORMATS[name]
    made = make(random_matrix(48, INPUTS))
    packed, target = packed_target(48, INT4_OFFSET, made.values.shape[1])

    fill_all(target, quantization, made.parts)

    errors = (packed.dequantise() - made.values).abs()
    if name not in FOUR:  # packed anew
        assert errors.norm() / made.values.norm() < 0.1
        return
    # Of scales nothing is rounded here, of offsets, at most 15 scales, 2^-11.
    assert (errors <= 1.01 * 15 * 2.0**-11 * made.scales.abs()).all()
    assert name in WITH_OFFSETS or not errors.any()


def test_a_zero_point_of_none_wraps_around_in_the_first_version() -> None:
    made = stored.gptq(random_matrix(16, 64).abs(), symmetric=False)
    assert (made.integers >= 0).all()  # all zero points are 0, stored as 15
    filled = torch.empty(16, 64)

    fill_all(TensorTarget(filled), gptq(), made.parts)

    assert torch.equal(filled, made.values)


@pytest.mark.parametrize("codes", [range(256), [c for c in range(256) if c & 0x7F != 0x7F]])
def test_every_code_of_fp8_is_the_number_of_torch(codes: Sequence[int]) -> None:
    matrix = torch.tensor([list(codes)], dtype=torch.uint8).view(torch.float8_e4m3fn)
    filled = torch.empty(matrix.shape)
    parts = {"weight": matrix, "weight_scale": torch.tensor(1.0)}

    fill_all(TensorTarget(filled), Quantization(method="fp8"), parts)

    assert torch.equal(filled.nan_to_num(1e9), matrix.float().nan_to_num(1e9))


@pytest.mark.parametrize("index", [-1, 2, 1 << 30])
def test_a_group_that_is_not_there_is_refused(index: int) -> None:
    made = stored.gptq(random_matrix(16, 64))
    made.parts["g_idx"][7] = index

    with pytest.raises(BrokenModelError, match="groups that it does not have"):
        fill_all(TensorTarget(torch.empty(16, 64)), gptq(), made.parts)


@pytest.mark.parametrize(
    ("quantization", "make"),
    [
        (gptq(group_size=MAX_GROUP), lambda w: stored.gptq(w, group=INPUTS)),
        (
            gptq(group_size=MAX_GROUP),
            lambda w: stored.gptq(w, group=INPUTS, symmetric=False),
        ),
        (
            Quantization(method="awq", bits=4, group_size=MAX_GROUP),
            lambda w: stored.awq(w, group=INPUTS),
        ),
        (
            Quantization(method="packed", bits=4, group_size=MAX_GROUP),
            lambda w: stored.packed(w, group=INPUTS),
        ),
        (
            Quantization(method="fp8", block=(1 << 16, 1 << 16)),
            lambda w: stored.fp8(w, block=(48, INPUTS), dtype=torch.float32),
        ),
    ],
    ids=["gptq", "gptq, zero points", "awq", "packed", "fp8"],
)
@pytest.mark.parametrize("target", ["tensor", "packed"])
def test_a_group_wider_than_the_matrix_takes_no_more_memory(
    quantization: Quantization, make: Make, target: str
) -> None:
    made = make(random_matrix(48, INPUTS))
    filled = torch.empty(48, INPUTS)

    with LargestTensor() as largest:
        fill_all(
            TensorTarget(filled) if target == "tensor" else packed_target(48, INT4)[1],
            quantization,
            made.parts,
        )

    assert largest.nbytes <= 16 * filled.nbytes
    assert target == "packed" or torch.equal(filled, made.values)
