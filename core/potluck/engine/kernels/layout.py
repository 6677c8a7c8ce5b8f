"""How packed weights and quantised inputs lie in memory: what packers write and products read.

A matrix (rows, inputs) is cut into blocks of 16 rows, a block into groups of 32 inputs. Groups follow
one another, block after block, so that a product reads one straight stream. A group is

    16 scales, f16, one per row          32 bytes
    16 offsets, f16, where there are any 32 bytes
    the weights as unsigned integers     256 bytes (4 bits) or 512 (8 bits)

and a weight is worth scale x (integer - zero point), the zero point being 8 or 128; or, with offsets,
scale x integer - offset. The integers stand in vectors of 64 bytes: for each of the 16 rows four
neighbouring inputs, the four bytes that one lane of a dot-product instruction takes. With 8 bits, vector v
has inputs 4v to 4v+3. With 4 bits, its low halves have inputs 4v to 4v+3 and its high halves 16+4v to
16+4v+3. Beyond the matrix rows are zero, and inputs are of whatever their group is: they are multiplied
with zeros.

The three forms are named by the whole bits that a weight takes: 4, 5 (integers of 4, with offsets) and 8.

An input of a product (tokens, inputs) is cut into tiles of 8 tokens, and what is left into tiles of 4,
2 and 1, because that many tokens share each weight that a product has unpacked. A tile has, group by
group and in it token by token, a record:

    scale, f32                           4 bytes
    minus the sum of the integers, i32   4 bytes
    scale x minus the sum, f32           4 bytes
    32 signed integers, i8               32 bytes

A value is worth scale x integer. With the sum known beforehand, a product starts from
-zero point x sum, and multiplies unsigned by signed integers, as the instructions want it; what an offset
takes off is offset x the sum's worth.

A KV cache of int8 has for each key and value of a head its signed integers, and after them their
scale, f32: (2, Hkv, capacity, K + 4) bytes, so that a token is written in one place and a head's
tokens are one straight stream. Quantised as an input is, but K numbers share the scale.
"""

from collections.abc import Iterator

from potluck.model.schemes import INTEGER_BITS, OFFSET_BITS

ROWS = 16  # of a block: the f32 lanes of the widest vectors
GROUP = 32  # inputs that share a scale
QUAD = 4  # inputs that one 32-bit lane of a dot product takes
VECTOR = ROWS * QUAD  # bytes
CACHE_LINE = 64  # bytes; where they are longer, what is prefetched twice is there already

FLOAT_BITS = 16  # of a matrix that is not packed: floats, row after row

SCALES_BYTES = 2 * ROWS
ZERO_POINT = {4: 8, OFFSET_BITS: 0, 8: 128}
LARGEST_SCALE = 65504.0  # of f16, and so of offsets; heavier weights are clipped
NOTHING = 1e-30  # a group without a larger number is zero: quotients and squares stay finite
LARGEST = 127  # integer of 8 bits; -128 is left out, so that a sign can be moved
MOST_STEPS = 15  # from the least number to the largest, with offsets
# Of integers less their zero points.
LIMITS = {4: (-8, 7), OFFSET_BITS: (0, MOST_STEPS), 8: (-LARGEST, LARGEST)}
# 4 bits: where the number of largest magnitude may land, in steps of the scale. 8 fills the range; less
# spends fewer steps on it, more clips it and gives the others a finer scale.
TRIED_STEPS = (8.0, 7.6, 7.2, 6.9, 8.3, 8.7, 6.6, 9.2)
# With offsets: how many steps to make of the range from the least number to the largest; more than 15
# clip both.
TRIED_RANGES = (15.0, 14.4, 15.6, 16.3, 17.1, 18.0)

CACHE_SCALE_BYTES = 4  # after the integers of a key or value

TILES = (8, 4, 2, 1)  # tokens
TILE = TILES[0]
RECORD_BYTES = 4 + 4 + 4 + GROUP
RECORD_SUM = 4  # where in a record
RECORD_WORTH = 8
RECORD_VALUES = 12


def groups_of(width: int) -> int:
    """Groups of inputs, the last one perhaps cut off."""
    return -(-width // GROUP)


def blocks_of(rows: int) -> int:
    """Blocks of rows, the last one perhaps cut off."""
    return -(-rows // ROWS)


def has_offsets(bits: int) -> bool:
    """Whether a group has 16 offsets behind its scales."""
    return bits == OFFSET_BITS


def payload_start(bits: int) -> int:
    """Where in a group the integers begin."""
    return (1 + has_offsets(bits)) * SCALES_BYTES


def group_bytes(bits: int) -> int:
    """Bytes of 16 rows x 32 inputs with their scales."""
    return payload_start(bits) + ROWS * GROUP * INTEGER_BITS[bits] // 8


def packed_bytes(rows: int, width: int, bits: int) -> int:
    """Bytes of a packed matrix."""
    return blocks_of(rows) * groups_of(width) * group_bytes(bits)


def input_bytes(tokens: int, width: int) -> int:
    """Bytes of the records of a quantised input."""
    return tokens * groups_of(width) * RECORD_BYTES


def tiles_of(tokens: int) -> Iterator[tuple[int, int]]:
    """Each tile's first token and size."""
    first = 0
    for size in TILES:
        while tokens - first >= size:
            yield first, size
            first += size
