"""Which bytes of a stored tensor a rank is sent: whole blocks, and no more than it has to."""

import random
from dataclasses import replace
from math import prod

import pytest
from model_folders import CONFIG

from potluck.model.byte_runs import ByteRuns, places
from potluck.model.checkpoint.stored import stored_bytes
from potluck.model.config import ModelConfig
from potluck.model.formats import PACKED_FORMATS, PackedFormat
from potluck.model.shares import Ranges, Share, TensorSlice
from potluck.model.stored_slices import StoredSlice, stage_slices, stored_slice

LLAMA = ModelConfig.from_dict(CONFIG)
UP = "model.layers.0.mlp.up_proj.weight"
QUERIES = "model.layers.0.self_attn.q_proj.weight"


def rows(*ranges: tuple[int, int]) -> TensorSlice:
    return TensorSlice(ranges=ranges)


def columns(*ranges: tuple[int, int]) -> TensorSlice:
    return TensorSlice(axis="columns", ranges=ranges)


def cut(
    part: TensorSlice, dtype: str, shape: tuple[int, ...], config: ModelConfig = LLAMA, name: str = UP
) -> StoredSlice:  # fmt: skip
    one = stored_slice(config, name, part, dtype, shape)
    assert one is not None
    assert one.nbytes == stored_bytes(dtype, one.shape)
    assert one.nbytes < one.whole_bytes
    assert one.whole_bytes == stored_bytes(dtype, shape)
    return one


def test_runs_can_be_read_in_pieces_that_end_anywhere() -> None:
    whole = bytes(range(240))
    runs = ByteRuns(period=40, count=6, runs=((0, 3), (10, 11), (20, 36)))
    wanted = b"".join(whole[40 * n :][a:b] for n in range(6) for a, b in runs.runs)
    assert runs.nbytes == len(wanted) == 120

    def read(offset: int, nbytes: int) -> bytes:
        return b"".join(whole[at:][:length] for at, length in runs.spans(offset, nbytes))

    for size in (1, 7, 20, 21, 120, 500):
        assert b"".join(read(at, size) for at in range(0, 120, size)) == wanted
    drawn = random.Random(1)
    for _ in range(200):
        offset, size = drawn.randrange(120), drawn.randrange(130)
        assert read(offset, size) == wanted[offset : offset + size]
    assert list(runs.spans(120, 5)) == list(runs.spans(3, 0)) == []


def test_places_of_what_is_not_cut_are_those_of_the_file() -> None:
    runs = ByteRuns(period=10, count=2, runs=((4, 6),))

    assert list(places(100, None, 7, 20)) == [(107, 20)]
    assert list(places(100, runs, 1, 2)) == [(105, 1), (114, 1)]


def test_equal_names_of_runs_say_equal_bytes() -> None:
    one = ByteRuns(period=10, count=2, runs=((4, 6), (8, 9)))

    assert one.name("ab") == "ab 2*10:4-6,8-9"
    others = (replace(one, period=11), replace(one, count=3), replace(one, runs=((4, 6),)))
    assert len({runs.name("ab") for runs in (one, *others)} | {one.name("cd")}) == 5


@pytest.mark.parametrize(
    ("part", "shape", "runs", "within"),
    [
        (rows((8, 24)), (16, 64), (1, ((1024, 3072),)), None),
        (rows((0, 4), (30, 32)), (6, 64), (1, ((0, 512), (3840, 4096))), None),
        (columns((3, 10)), (32, 7), (32, ((6, 20),)), None),
    ],
)
def test_plain_numbers_are_cut_anywhere(
    part: TensorSlice, shape: tuple[int, int], runs: tuple[int, Ranges], within: None
) -> None:
    one = cut(part, "BF16", (32, 64))

    assert (one.shape, one.within) == (shape, within)
    assert (one.runs.count, one.runs.runs) == runs


@pytest.mark.parametrize("held", PACKED_FORMATS, ids=[held.name for held in PACKED_FORMATS])
def test_packed_matrices_are_cut_between_blocks(held: PackedFormat) -> None:
    """Where blocks share steps, between super-blocks; so that no more than that is sent in vain."""
    unit = 256 if held.has_steps else 32
    one = cut(columns((320, 1024)), held.dtype, (48, 1024))

    start = 320 // unit * unit
    assert one.shape == (48, 1024 - start)
    assert one.within == (None if start == 320 else columns((320 - start, 1024 - start)))
    assert cut(rows((16, 32)), held.dtype, (48, 1024)).shape == (16, 1024)
    assert cut(rows((20, 30)), held.dtype, (48, 1024)).within == rows((4, 14))
    assert stored_slice(LLAMA, UP, columns((0, 33)), held.dtype, (48, 64)) is None


def test_blocks_of_gguf_are_cut_between_each_other() -> None:
    assert cut(columns((0, 512)), "GGUF_Q4_K", (3, 1024)).within is None
    one = cut(columns((300, 500), (900, 1024)), "GGUF_Q4_K", (3, 1024))
    assert one.shape == (3, 512)
    assert one.within == columns((44, 244), (388, 512))
    assert one.runs.runs == ((144, 288), (432, 576))
    overlapping = cut(columns((0, 30), (40, 60)), "GGUF_Q4_0", (3, 96))
    assert overlapping.shape == (3, 64)
    assert overlapping.within == columns((0, 30), (40, 60))


@pytest.mark.parametrize(
    ("part", "dtype", "shape"),
    [
        (rows(), "F32", (8, 8)),  # zeros in place of it
        (rows((4, 8), (0, 4)), "F32", (16, 8)),
        (rows((0, 8)), "F32", (8, 8)),
        (rows((0, 4)), "F8_E4M3", (8, 8)),
        (rows((0, 4)), "U8", (8, 8)),
        (rows((0, 4)), "GGUF_Q9_X", (8, 256)),
        (columns((0, 4)), "F32", (8, 1, 8)),
        (rows((1, 2)), "GGUF_Q8_0", (64,)),  # a block has many numbers of a vector
        (rows((3, 5)), "PACKED8", (64,)),
    ],
)
def test_what_cannot_be_cut_is_sent_as_a_whole(
    part: TensorSlice, dtype: str, shape: tuple[int, ...]
) -> None:
    assert stored_slice(LLAMA, UP, part, dtype, shape) is None


def test_rows_that_are_put_into_order_are_cut_between_heads() -> None:
    stored = {"quant_method": "gguf", "bits": 4, "interleaved_heads": True}
    config = ModelConfig.from_dict({**CONFIG, "quantization_config": stored})
    assert config.paired_rows(QUERIES) is not None

    assert cut(rows((8, 24)), "F32", (32, 32), config, QUERIES).shape == (16, 32)
    assert stored_slice(config, QUERIES, rows((4, 24)), "F32", (32, 32)) is None


def test_both_ranks_together_are_sent_every_tensor_of_a_layer_once() -> None:
    layer = LLAMA.stage_tensors(range(1), embedding=False, head=False)
    sent = 0
    for rank in range(2):
        slices = stage_slices(LLAMA, range(1), Share(rank=rank, parts=(1, 1)), "f32")
        for name, part in slices.items():
            one = stored_slice(LLAMA, name, part, "F32", layer[name])
            assert one is not None
            sent += one.nbytes
    assert sent == 4 * sum(prod(shape) for shape in layer.values() if len(shape) == 2)
