"""A matrix in several tensors is read without being held, or waits until there is room to hold it."""

import dataclasses
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import quantised_tensors as stored
import torch
from quantised_tensors import Quantised, random_matrix
from safetensors.torch import save_file
from tiny_models import Reference, stored_tensors
from torch import Tensor

from potluck.engine.kernels import PackedWeight, best_kernels
from potluck.engine.loading.reading import PIECE, Allowance, Reader, StoredTensor
from potluck.engine.loading.targets import PackedTarget, TensorTarget
from potluck.errors import BrokenModelError, IntegrityError
from potluck.model.formats import INT8
from potluck.model.quantized import Quantization

FP8 = Quantization(method="fp8")
GPTQ = Quantization(method="gptq", bits=4, group_size=32, zero_offset=1)


def save(made: Quantised, folder: Path) -> tuple[StoredTensor, ...]:
    prefix = "model.layers.0.mlp.up_proj."
    parts = {prefix + name: part for name, part in made.parts.items()}
    save_file(parts, folder / "model.safetensors")
    return stored_tensors(folder)


def reader_of(
    llama: Reference, quantization: Quantization, held: Allowance | None = None
) -> Reader:
    return Reader(dataclasses.replace(llama.config, quantization=quantization), 0, None, 1, held)


@pytest.mark.parametrize("rows", [8 * PIECE // 1024, 16])
def test_rows_of_bytes_are_read_in_pieces(llama: Reference, tmp_path: Path, rows: int) -> None:
    made = stored.fp8(random_matrix(rows, 1024), block=None, dtype=torch.bfloat16)
    parts = save(made, tmp_path)
    filled = torch.empty(rows, 1024)

    tracemalloc.start()
    reader_of(llama, FP8).fill(parts, TensorTarget(filled))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert torch.equal(filled, made.values)
    assert most < 2 * PIECE


def test_what_damage_makes_of_a_number_is_called_damage(llama: Reference, tmp_path: Path) -> None:
    parts = save(stored.fp8_whole(random_matrix(32, 64)), tmp_path)
    weight = next(part for part in parts if part.name.endswith(".weight"))
    target = PackedTarget(PackedWeight.empty(32, 64, INT8), 0, 32, best_kernels())
    with weight.path.open("r+b") as file:
        file.seek(weight.offset)
        file.write(b"\x7f")  # no number

    with pytest.raises(IntegrityError) as caught:
        reader_of(llama, FP8).fill(parts, target)
    assert caught.value.data["digest"] == weight.digest

    made_so = stored_tensors(tmp_path)
    with pytest.raises(BrokenModelError, match="not a number"):
        reader_of(llama, FP8).fill(made_so, target)


def test_a_matrix_whose_words_lie_across_is_counted_while_it_is_held(
    llama: Reference, tmp_path: Path
) -> None:
    made = stored.gptq(random_matrix(32, 256))
    parts = save(made, tmp_path)
    held = Allowance(sum(part.nbytes for part in parts))
    room: list[bool] = []

    class Counting(TensorTarget):
        def fill(self, first: int, values: Tensor) -> None:
            room.append(held.has(1))
            super().fill(first, values)

    filled = torch.empty(32, 256)
    reader_of(llama, GPTQ, held).fill(parts, Counting(filled))

    assert torch.equal(filled, made.values)
    assert room == [False]
    assert held.has(sum(part.nbytes for part in parts))


def test_no_more_is_taken_than_is_allowed_but_by_one_alone() -> None:
    allowance, lock = Allowance(100), threading.Lock()
    taken: list[int] = []

    def take(nbytes: int) -> None:
        with allowance.take(nbytes):
            with lock:
                taken.append(nbytes)
                assert sum(taken) <= 100 or taken == [nbytes]
            with lock:
                taken.remove(nbytes)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(take, nbytes) for nbytes in (60, 30, 50, 10, 1000, 100, 0) * 30]:
            done.result()
    assert allowance.has(100)


def test_room_is_given_back_after_an_error() -> None:
    allowance = Allowance(100)

    def fail() -> None:
        with allowance.take(100):
            assert not allowance.has(1)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()

    assert allowance.has(100)
