"""Rows of a table come from the files that have them, and what cannot be read is said."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from potluck.engine.layers import row_table
from potluck.engine.layers.row_table import RowTable
from potluck.errors import BrokenModelError, EngineError
from potluck.model.mixing.ngrams import NgramSpec
from potluck.model.mixing.streams import Streams
from potluck.model.quantized import GGUF

ROWS, WIDTH, SHARDS = 23, 6, 5
SPEC = NgramSpec(
    streams=Streams(count=2, rank=2, hidden_size=4),
    size=2 * WIDTH,
    order=2,
    sizes=(11, 12),
    multipliers=(3, 5),
    end=0,
    rows=ROWS,
    shards=SHARDS,
    inputs=2,
)
VALUES = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16", torch.int8: "I8"}


@dataclass(frozen=True)
class File:
    name: str
    dtype: str
    nbytes: int
    path: Path
    offset: int


def write(folder: Path, shard: int, values: Tensor, *, before: int = 8) -> File:
    data = values.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    path = folder / f"{shard}.bin"
    path.write_bytes(b"x" * before + data)
    return File(f"shard_{shard}", DTYPES[values.dtype], len(data), path, before)


def make_table(folder: Path, values: Tensor = VALUES) -> RowTable:
    table = RowTable(SPEC)
    for shard, part in enumerate(values.split(SPEC.shard_rows)):
        table.place(shard, write(folder, shard, part))
    return table


@pytest.mark.parametrize("kept_open", [1, 64])
def test_rows_of_all_files_are_read_in_the_order_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_open: int
) -> None:
    monkeypatch.setattr(row_table, "_OPEN", kept_open)
    rows = torch.tensor([[22, 0, 4], [5, 22, 13], [9, 10, 0]])

    read = make_table(tmp_path).read(rows)

    assert torch.equal(read, VALUES.float()[rows])


def test_a_table_whose_files_differ_in_their_numbers_is_read_too(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.place(1, write(tmp_path, 1, VALUES[5:10].float()))

    assert torch.equal(table.read(torch.arange(ROWS)), VALUES.float())


def test_a_table_may_be_in_blocks_of_gguf_that_end_with_a_row(tmp_path: Path) -> None:
    spec = replace(SPEC, size=2 * 32, shards=1)
    values = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(1))
    blocks = quantize(values.numpy(), GGMLQuantizationType.Q8_0)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 8 + blocks.tobytes())
    table = RowTable(spec)
    table.place(0, File("table", GGUF + "Q8_0", blocks.nbytes, path, 8))
    rows = torch.tensor([3, 22, 3])

    read = table.read(rows)

    held = torch.from_numpy(dequantize(blocks, GGMLQuantizationType.Q8_0))
    assert torch.equal(read, held[rows])
    with pytest.raises(BrokenModelError, match="blocks of GGUF that end with a row"):
        table.place(0, File("table", GGUF + "Q4_K", blocks.nbytes, path, 8))


def test_a_file_that_was_deleted_is_named_with_what_to_do(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    (tmp_path / "2.bin").unlink()

    assert torch.equal(table.read(torch.tensor([0])), VALUES[:1].float())
    with pytest.raises(EngineError, match=r"shard_2 .* 2\.bin .*Load the model anew"):
        table.read(torch.tensor([0, 12]))


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    path = tmp_path / "4.bin"
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(EngineError, match="too short"):
        table.read(torch.tensor([ROWS - 1]))


def test_a_file_that_is_too_short_from_the_beginning_is_refused_at_once(tmp_path: Path) -> None:
    part = write(tmp_path, 0, VALUES[:5])
    part.path.write_bytes(b"")

    with pytest.raises(EngineError, match="too short"):
        RowTable(SPEC).place(0, part)


def test_a_row_that_is_not_a_number_is_refused_with_its_table(tmp_path: Path) -> None:
    values = VALUES.clone()
    values[3, 2] = torch.nan

    with pytest.raises(BrokenModelError, match="shard_0"):
        make_table(tmp_path, values).read(torch.tensor([3]))


def test_a_table_of_integers_is_refused_with_what_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(BrokenModelError, match=r"stored as I8.*F32, F16, BF16"):
        RowTable(SPEC).place(0, write(tmp_path, 0, torch.zeros(5, WIDTH, dtype=torch.int8)))
