"""What the formats take, and what they are called where others read it."""

from dataclasses import replace
from typing import Any

import pytest

from potluck.model.formats import (
    BF16,
    F16,
    F32,
    INT4,
    INT4_OFFSET,
    INT4_SUPER,
    INT8,
    MXFP4,
    PACKED_DTYPES,
    PACKED_FORMATS,
    PLAIN_DTYPES,
    PackedFormat,
    WeightFormat,
)


@pytest.mark.parametrize(
    ("weight_format", "nbytes"),
    [(F32, 4 * 33 * 70), (BF16, 2 * 33 * 70), (F16, 2 * 33 * 70), (INT8, 3 * 3 * 544),
     (INT4, 3 * 3 * 288), (INT4_OFFSET, 3 * 3 * 320),
     (INT4_SUPER, 3 * (64 + 3 * 288)), (MXFP4, 3 * 3 * 272)],
)  # fmt: skip
def test_a_matrix_takes_whole_blocks(weight_format: WeightFormat, nbytes: int) -> None:
    assert weight_format.nbytes(33, 70) == nbytes
    assert weight_format.nbytes(0, 70) == weight_format.nbytes(33, 0) == 0


def test_steps_stand_before_each_row_of_blocks() -> None:
    assert INT4_SUPER.nbytes(16, 256) == 64 + 8 * 288
    assert INT4_SUPER.nbytes(17, 257) == 2 * (2 * 64 + 9 * 288)
    assert [INT4_SUPER.step_bytes(width) for width in (0, 256, 288)] == [0, 64, 128]
    assert INT4_OFFSET.step_bytes(256) == 0


def test_a_vector_is_a_matrix_of_one_column() -> None:
    assert F32.nbytes(33) == 4 * 33


@pytest.mark.parametrize("held", PACKED_FORMATS, ids=[one.name for one in PACKED_FORMATS])
def test_the_parts_of_a_block_fill_it(held: PackedFormat) -> None:
    factor_bytes = held.scale_bytes * held.block_rows
    integer_bytes = held.block_rows * held.block_inputs * held.integer_bits // 8

    starts = [0] if held.offsets_start is None else [0, held.offsets_start]

    assert starts == [factor_bytes * number for number in range(len(starts))]
    assert held.integers_start == factor_bytes * len(starts)
    assert held.block_bytes == held.integers_start + integer_bytes


@pytest.mark.parametrize(
    ("like", "changes"),
    [
        (INT8, {"limits": (-128, 127)}),  # a stored 0 has no negative in AVX2
        (INT8, {"limits": (-127, 128)}),
        (INT8, {"zero_point": 0, "limits": (1, 255)}),
        (INT8, {"offsets_start": 32, "integers_start": 64, "zero_point": 0, "limits": (0, 255)}),
        (INT4, {"limits": (-8, 8)}),
        (INT4, {"zero_point": 0, "limits": (0, 15)}),
        (INT4_OFFSET, {"zero_point": 8, "limits": (-8, 7)}),
        (INT4, {"codes": tuple(range(-8, 8))}),
        (MXFP4, {"codes": None}),
        (MXFP4, {"limits": (-12, 13)}),
        (INT4, {"integer_bits": 2, "zero_point": 2, "limits": (-2, 1)}),
    ],
)
def test_integers_that_no_product_computes_right_are_refused(
    like: PackedFormat, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="the format odd stores integers from"):
        replace(like, name="odd", **changes)


def test_dtypes_are_those_of_messages_and_stores() -> None:
    assert PACKED_DTYPES == {
        "PACKED8": INT8,
        "PACKED4": INT4,
        "PACKED4_OFFSET": INT4_OFFSET,
        "PACKED4_SUPER": INT4_SUPER,
        "PACKED_MXFP4": MXFP4,
    }
    assert PLAIN_DTYPES == {"F32": F32, "F16": F16, "BF16": BF16}
