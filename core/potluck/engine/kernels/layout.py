"""How packed weights and quantised inputs lie in memory: what packers write and products read.

`model/formats.py` has the packed formats: blocks of 16 rows x 32 inputs with a scale, and perhaps an offset,
for each row. Blocks follow one another along the inputs, and then along the rows, so that a product
reads one straight stream. If scales and offsets are multiples of steps, those of 16 rows stand before
their row of blocks, in the order of its super-blocks of 256 inputs; the last one may have fewer.

The integers of a block stand in vectors of 64 bytes: for each of the 16 rows four neighbouring inputs,
which are the four bytes that one lane of a dot-product instruction takes. With 8 bits, vector v has inputs
4v to 4v+3. With 4 bits, its low nibbles have inputs 4v to 4v+3 and its high nibbles 16+4v to 16+4v+3. Rows
beyond the matrix are zero. Inputs beyond it are whatever their block makes of zeros: they are multiplied
with zeros.

An input of a product (tokens, inputs) is cut into tiles of 8 tokens, and what is left into tiles of 4,
2 and 1, because that many tokens share each weight that a product has unpacked. A tile has, group by
group and in it token by token, a record:

    scale, f32                           4 bytes
    minus the sum of the integers, i32   4 bytes
    scale x minus the sum, f32           4 bytes
    32 signed integers, i8               32 bytes

The value of an input is scale x integer. With the sum known beforehand, a product starts from
-zero point x sum, and multiplies unsigned by signed integers, as the instructions want it; for the
offset of a weight it adds offset x (scale x minus the sum).

A KV cache of int8 has for each key and value of a head its signed integers, and after them their
scale, f32: (2, Hkv, capacity, K + 4) bytes, so that a token is written in one place and a head's
tokens are one straight stream. It is quantised as an input is, but K numbers share the scale.
"""

from collections.abc import Iterator
from itertools import pairwise

from potluck.model.formats import BLOCK_INPUTS, BLOCK_ROWS, PackedFormat

ROWS = BLOCK_ROWS  # as many as the widest vectors have lanes for f32
GROUP = BLOCK_INPUTS  # inputs that share a scale, of weights and of a product's input
QUAD = 4  # inputs that one 32-bit lane of a dot product takes
VECTOR = ROWS * QUAD  # bytes
CACHE_LINE = 64  # bytes; where lines are longer, some are prefetched twice, which costs nothing

LARGEST_SCALE = 65504.0  # of f16, and so of offsets; heavier weights are clipped
NOTHING = 1e-30  # a group without a larger number is zero: quotients and squares stay finite
LARGEST = 127  # integer of a quantised input; without -128 the sign of each can be changed
# int4: the number of largest magnitude in a group is tried at minus each of these. 8 fills the range; less makes
# the scale coarser, more clips that number and gives the others a finer scale.
TRIED_STEPS = (8.0, 7.6, 7.2, 6.9, 8.3, 8.7, 6.6, 9.2)
# Formats with offsets: of so many steps between the least number and the largest, so many are cut off below; what is
# above 15 then is cut off there. The best six of 182 for random groups: of their squares 0.479 % are left as the error.
# 0.519 % are with six that cut off as much above as below, and 0.475 % with twelve.
TRIED_CUTS = ((15.2, 0.0), (15.2, 0.25), (15.2, 0.5), (15.2, -0.25), (15.5, 0.25), (14.0, -1.0))
LARGEST_MULTIPLE = 255.0  # int4-super: of a step
# Steps below this are rounded up to a multiple of the least f16, so that no multiple of them has to be larger than the
# largest: half of it is added, and then they are rounded as f32 of this size are.
LEAST_NORMAL, HALF_OF_LEAST, AT_LEAST_STEPS = 2.0**-14, 2.0**-25, 0.5
LARGEST_CODED = 14.0  # mxfp4: of a group, in units of the scale

CACHE_SCALE_BYTES = 4  # after the integers of a key or value

TILES = (8, 4, 2, 1)  # tokens
TILE = TILES[0]
RECORD_BYTES = 4 + 4 + 4 + GROUP
RECORD_SUM = 4  # bytes from the start of a record, as the two below
RECORD_WORTH = 8
RECORD_VALUES = 12


def code_middles(held: PackedFormat) -> Iterator[tuple[float, bool]]:
    """Where the next code without a sign begins, and whether it is even: then the middle belongs to it."""
    assert held.codes is not None
    sizes = held.codes[: len(held.codes) // 2]
    for code, (below, above) in enumerate(pairwise(sizes), 1):
        yield (below + above) / 2, code % 2 == 0


def groups_of(width: int) -> int:
    """Return the number of groups of inputs; the last one may be cut off."""
    return -(-width // GROUP)


def blocks_of(rows: int) -> int:
    """Return the number of blocks of rows; the last one may be cut off."""
    return -(-rows // ROWS)


def input_bytes(tokens: int, width: int) -> int:
    """Return the bytes of the records of a quantised input."""
    return tokens * groups_of(width) * RECORD_BYTES


def tiles_of(tokens: int) -> Iterator[tuple[int, int]]:
    """Yield each tile's first token and its number of tokens."""
    first = 0
    for size in TILES:
        while tokens - first >= size:
            yield first, size
            first += size
