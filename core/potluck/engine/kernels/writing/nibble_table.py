"""Look up bytes in a table of 16, by the instruction that a processor has for it."""

from functools import partial

from potluck.engine.kernels.writing.ir_types import I8, constant, vector
from potluck.engine.kernels.writing.values import Builder, Value

# By the dot product of a path: the instruction, and how many bytes it looks up. The table is repeated in every 16.
_INSTRUCTIONS = {
    "vnni512": ("llvm.x86.avx512.pshuf.b.512", 64),
    "vnni256": ("llvm.x86.avx2.pshuf.b", 32),
    "avx2": ("llvm.x86.avx2.pshuf.b", 32),
    "usdot": ("llvm.aarch64.neon.tbl1.v16i8", 16),
    "sdot": ("llvm.aarch64.neon.tbl1.v16i8", 16),
}


def look_up(e: Builder, table: tuple[int, ...], codes: Value) -> Value:
    """Return table[code] for each byte of a vector of codes from 0 to 15."""
    found = _INSTRUCTIONS.get(e.path.dot)
    count = codes.type.count
    if found is None or count % found[1]:
        name = f"table_{count}_" + "_".join(map(str, table))
        return e.call_shared(name, partial(_selected, table), codes)
    name, lanes = found
    typ = vector(I8, lanes)
    repeated = e.value(constant(typ, table * (lanes // len(table))))
    return e.join(
        [e.intrinsic(name, typ, [repeated, part]) for part in codes.parts(count // lanes)]
    )


def _selected(table: tuple[int, ...], codes: Value) -> Value:
    """The same where no instruction does it, or there are too few codes for one."""
    e = codes.e
    result = e.value(constant(codes.type, table[0]))
    for code, number in enumerate(table[1:], 1):
        result = e.select(codes.equals(code), constant(codes.type, number), result)
    return result
