"""What the formats take, and what they are called where others read it."""

import pytest

from potluck.model.formats import (
    BF16,
    F16,
    F32,
    INT4,
    INT4_OFFSET,
    INT8,
    PACKED_DTYPES,
    PACKED_FORMATS,
    PLAIN_DTYPES,
    PackedFormat,
    WeightFormat,
)


@pytest.mark.parametrize(
    ("weight_format", "nbytes"),
    [(F32, 4 * 33 * 70), (BF16, 2 * 33 * 70), (F16, 2 * 33 * 70), (INT8, 3 * 3 * 544),
     (INT4, 3 * 3 * 288), (INT4_OFFSET, 3 * 3 * 320)],
)  # fmt: skip
def test_a_matrix_takes_whole_blocks(weight_format: WeightFormat, nbytes: int) -> None:
    assert weight_format.nbytes(33, 70) == nbytes
    assert weight_format.nbytes(0, 70) == weight_format.nbytes(33, 0) == 0


def test_a_vector_is_a_matrix_of_one_column() -> None:
    assert F32.nbytes(33) == 4 * 33


@pytest.mark.parametrize("held", PACKED_FORMATS, ids=[one.name for one in PACKED_FORMATS])
def test_the_parts_of_a_block_fill_it(held: PackedFormat) -> None:
    factor_bytes = 2 * held.block_rows
    integer_bytes = held.block_rows * held.block_inputs * held.integer_bits // 8

    starts = [0] if held.offsets_start is None else [0, held.offsets_start]

    assert starts == [factor_bytes * number for number in range(len(starts))]
    assert held.integers_start == factor_bytes * len(starts)
    assert held.block_bytes == held.integers_start + integer_bytes


@pytest.mark.parametrize("held", PACKED_FORMATS, ids=[one.name for one in PACKED_FORMATS])
def test_every_integer_can_be_stored_unsigned(held: PackedFormat) -> None:
    least, most = held.limits

    assert least + held.zero_point >= 0
    assert most + held.zero_point < 1 << held.integer_bits


def test_dtypes_are_those_of_messages_and_stores() -> None:
    assert PACKED_DTYPES == {"PACKED8": INT8, "PACKED4": INT4, "PACKED4_OFFSET": INT4_OFFSET}
    assert PLAIN_DTYPES == {"F32": F32, "F16": F16, "BF16": BF16}
