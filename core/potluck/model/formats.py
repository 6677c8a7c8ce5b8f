"""Weight formats: how the numbers of a tensor are held in memory, in a store and on the wire.

A format cuts a matrix (rows, inputs) into blocks that follow one another, row of blocks after row of
blocks. A block of a plain format is one number. A block of a packed format has 16 rows of 32 inputs:
scales, perhaps offsets, and integers. `engine/kernels/layout.py` says how the integers of a block are
ordered. Scales and offsets of a block may be whole multiples of steps, which super-blocks of several blocks have in
common; the steps of a row of blocks stand before it.

Code asks a format for its facts and never compares its name. A new format needs

- a row in the table here, and in `tensor_formats.py` if a scheme holds tensors in it;
- code that finds a block's scales in `engine/kernels/products/scale_search.py`, and the same in torch in
  `reference.py`;
- if integers are stored in another way than those here: code that takes a block apart in
  `engine/kernels/products/block_kernel.py`, for all products and embedding lookups, and in `engine/kernels/products/tensors.py`,
  for torch and the GPU forms;
- if integers of 4 bits stand for numbers beyond 0 to 15: a sum that holds them in
  `engine/kernels/products/dots.py`;
- if it should be kept exactly: code that reads it from a model's files (`quantized.py`,
  `engine/loading/dequantise.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

BLOCK_ROWS = 16
BLOCK_INPUTS = 32  # inputs of a row that share a scale and an offset
SUPER_BLOCKS = 8  # blocks of a row of blocks that share steps
STEP_BYTES = (
    4 * BLOCK_ROWS
)  # of a super-block: of each row the step of scales, then of each that of offsets, f16

# What products compute right: bits, whether there are offsets, and codes → the zero point, and integers plus
# zero point. From 8 bits, AVX2 and the GPU forms take 128 away; AVX2 negates the rest, and -128 has no negative.
_STORED: Mapping[tuple[int, bool, bool], tuple[int, range]] = {
    (8, False, False): (128, range(1, 256)),
    (4, False, False): (8, range(16)),
    (4, True, False): (0, range(16)),
    (4, False, True): (12, range(25)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the numbers of a tensor are held: a plain format, if it is not a `PackedFormat`."""

    name: str
    dtype: str  # what manifests, stores and messages call it; plain ones as safetensors names them
    block_rows: int = 1
    block_inputs: int = 1
    block_bytes: int

    def nbytes(self, rows: int, width: int = 1) -> int:
        """Bytes of a matrix. Blocks that its edge cuts off are stored whole."""
        blocks = -(-rows // self.block_rows) * -(-width // self.block_inputs)
        return blocks * self.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat(WeightFormat):
    """Integers with scales: value = scale x (integer - zero point) - offset.

    The scales of a block's rows come first: f16, or the exponents of powers of two, a byte each, as f32 has
    them (2 to the byte - 127; 0 is 0). With steps, scales and offsets are a byte each, and multiply the step of their
    row. Integers are stored unsigned, or as codes that stand for them.
    """

    block_rows: int = BLOCK_ROWS
    block_inputs: int = BLOCK_INPUTS
    # where the offsets of the rows begin, f16 or multiples of steps; None: there are none
    offsets_start: int | None = None
    integers_start: int
    integer_bits: int  # 8, or 4: two integers share a byte
    zero_point: int
    limits: tuple[int, int]  # the least and the most of integer - zero point
    scale_bytes: int = 2  # 1: exponents, or multiples of steps
    has_steps: bool = False  # of scales and offsets, both
    codes: tuple[int, ...] | None = None
    """The integer - zero point of each code. Those without a sign come first, in order; then their negatives."""

    def __post_init__(self) -> None:
        """Refuse integers that kernels, torch or a GPU would compute wrong numbers with."""
        zero_point, stored = _STORED.get(
            (self.integer_bits, self.has_offsets, self.codes is not None), (0, range(0))
        )
        least, most = (limit + self.zero_point for limit in self.limits)
        if zero_point != self.zero_point or least not in stored or most not in stored:
            raise ValueError(
                f"the format {self.name} stores integers from {least} to {most} in"
                f" {self.integer_bits} bits, with a zero point of {self.zero_point} and"
                f" {'' if self.has_offsets else 'no '}offsets, and no product computes these right:"
                " write code for them, and then a row of _STORED"
            )

    def nbytes(self, rows: int, width: int = 1) -> int:
        """Bytes of a matrix, with the steps of each row of blocks."""
        steps = -(-rows // self.block_rows) * self.step_bytes(width)
        return steps + WeightFormat.nbytes(self, rows, width)

    def step_bytes(self, width: int) -> int:
        """Bytes of the steps before a row of blocks."""
        return -(-width // (SUPER_BLOCKS * self.block_inputs)) * STEP_BYTES if self.has_steps else 0

    @property
    def has_offsets(self) -> bool:
        return self.offsets_start is not None

    @property
    def is_nibbles(self) -> bool:
        """Whether two integers share a byte."""
        return self.integer_bits == 4


F32 = WeightFormat(name="f32", dtype="F32", block_bytes=4)
BF16 = WeightFormat(name="bf16", dtype="BF16", block_bytes=2)
F16 = WeightFormat(name="f16", dtype="F16", block_bytes=2)
INT8 = PackedFormat(
    name="int8",
    dtype="PACKED8",
    block_bytes=32 + 512,
    integers_start=32,
    integer_bits=8,
    zero_point=128,
    limits=(-127, 127),  # without -128, so that a product may move the sign to the input
)
INT4 = PackedFormat(
    name="int4",
    dtype="PACKED4",
    block_bytes=32 + 256,
    integers_start=32,
    integer_bits=4,
    zero_point=8,
    limits=(-8, 7),
)
INT4_OFFSET = PackedFormat(
    name="int4-offset",
    dtype="PACKED4_OFFSET",
    block_bytes=32 + 32 + 256,
    offsets_start=32,
    integers_start=64,
    integer_bits=4,
    zero_point=0,
    limits=(0, 15),
)
# The layout of scales that GGUF's Q4_K has, whose scales and minima of 6 bits fit.
INT4_SUPER = PackedFormat(
    name="int4-super",
    dtype="PACKED4_SUPER",
    block_bytes=16 + 16 + 256,
    offsets_start=16,
    integers_start=32,
    integer_bits=4,
    zero_point=0,
    limits=(0, 15),
    scale_bytes=1,
    has_steps=True,
)

_E2M1 = (
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    12,
)  # twice the numbers of a sign, two bits of exponent, one of mantissa
# OCP Microscaling Formats, version 1.0. Twice the numbers, since integers are computed with: half the scales.
MXFP4 = PackedFormat(
    name="mxfp4",
    dtype="PACKED_MXFP4",
    block_bytes=16 + 256,
    integers_start=16,
    integer_bits=4,
    zero_point=12,
    limits=(-12, 12),
    scale_bytes=1,
    codes=(*_E2M1, *(-number for number in _E2M1)),
)

PLAIN_FORMATS = (F32, F16, BF16)
PACKED_FORMATS = (INT8, INT4, INT4_OFFSET, INT4_SUPER, MXFP4)
PLAIN_DTYPES: Mapping[str, WeightFormat] = {one.dtype: one for one in PLAIN_FORMATS}
PACKED_DTYPES: Mapping[str, PackedFormat] = {one.dtype: one for one in PACKED_FORMATS}
