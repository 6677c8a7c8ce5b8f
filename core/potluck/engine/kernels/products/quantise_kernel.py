"""The kernels that quantise the input of a product for many tokens, as they are or gated."""

from llvmlite import ir

from potluck.engine.kernels.layout import GROUP, RECORD_BYTES, TILE, TILES
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import Reading, emit_record, read_row
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.ir_types import I8, I64, KIND_BF16, KIND_F16, KIND_F32, Operand
from potluck.engine.kernels.writing.memory import Address, Number, Record
from potluck.engine.kernels.writing.values import Value


class Quantise(Record):
    """The arguments of quantising. A block of the job is a tile of 8 tokens; the last may have fewer."""

    source = Address(I8)
    kind = Number()  # of the source
    stride = Number()  # numbers from one token to the next
    width = Number()  # numbers that are written
    tokens = Number()
    records = Address(I8)
    rows = Address(I64)  # (tokens,): which row of the source is each token's; only if it `gathers`


def emit_quantise(
    module: ir.Module, name: str, path: Path, reading: Reading = "plain", *, gathers: bool = False
) -> ir.Function:
    """Write each token's numbers as records, which lie as `layout` says: a job of the threads."""
    record = emit_record(module, f"{name}_record", path)
    e, given, first, last = begin_piece(module, name, path, Quantise)
    groups = (given.width + (GROUP - 1)) // GROUP

    def one_token(token: Value, target: Operand, step: Value) -> None:
        with e.each_kind(given.kind, (KIND_F32, KIND_BF16, KIND_F16)) as kinds:
            for kind in kinds:
                place = given.rows[token] if gathers else token
                source = given.source.of(kind) + place * given.stride
                row = read_row(e, reading, source, given.width)
                for span in e.spans(given.width, GROUP):
                    e.call(record, [row(span), target.skip(span.first // GROUP, step)])

    end = (last * TILE).at_most(given.tokens)
    token = e.variable(first * TILE)
    with e.loop(0, len(TILES)) as index:
        size = e.index(TILE) >> index
        with e.loop(token.value, end - size + 1, size) as begin:
            tile = given.records.skip(begin * groups, RECORD_BYTES)
            with e.loop(0, size) as member:
                one_token(begin + member, tile.skip(member, RECORD_BYTES), size * RECORD_BYTES)
            token.value = begin + size
    return e.end()
