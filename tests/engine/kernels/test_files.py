"""Compiled kernels on disk: another process takes them, and whatever is damaged is compiled again."""

from pathlib import Path

import pytest
from llvmlite import ir

from potluck.engine.kernels.called.generated import host_paths
from potluck.engine.kernels.files import CompiledCode, KernelFiles
from potluck.engine.kernels.library import Library
from potluck.engine.kernels.paths import Path as Instructions

COMPILED: list[int] = []  # what was written, in this order


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    COMPILED.clear()


def emit_constant(module: ir.Module, name: str, path: Instructions, number: int) -> ir.Function:
    """Write a kernel that returns this number."""
    COMPILED.append(number)
    integer = ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(integer, [ir.IntType(64)]), name)
    ir.IRBuilder(function.append_basic_block()).ret(integer(number))
    return function


def call_in_another_process(folder: Path, number: int) -> int:
    """Return what the kernel for this number returns."""
    library = Library(host_paths()[0], KernelFiles(folder))  # the kernel lives as long as this
    return library.get(emit_constant, number)(0)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


def test_a_kernel_that_was_compiled_is_not_compiled_by_the_next_process(tmp_path: Path) -> None:
    for number in (7, 8, 7):
        assert call_in_another_process(tmp_path, number) == number

    assert COMPILED == [7, 8]
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize("left", [0, 31, 40, -1])
def test_a_file_that_is_cut_short_is_compiled_again(tmp_path: Path, left: int) -> None:
    call_in_another_process(tmp_path, 7)
    [file] = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:left])

    assert call_in_another_process(tmp_path, 7) == 7
    assert COMPILED == [7, 7]
    assert file.read_bytes() == whole


def test_a_file_with_a_bit_flipped_is_compiled_again(tmp_path: Path) -> None:
    call_in_another_process(tmp_path, 7)
    [file] = kept(tmp_path)
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)

    assert call_in_another_process(tmp_path, 7) == 7
    assert COMPILED == [7, 7]


def test_kernels_of_another_version_of_the_program_are_deleted(tmp_path: Path) -> None:
    KernelFiles(tmp_path).keep("kernel", CompiledCode(kinds=(), code=b"code"))
    [of_this_version] = tmp_path.iterdir()
    of_this_version.rename(tmp_path / "before")

    assert KernelFiles(tmp_path).recall("kernel") is None
    assert kept(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")

    assert call_in_another_process(file, 7) == 7


def test_only_the_owner_can_change_what_is_run(tmp_path: Path) -> None:
    call_in_another_process(tmp_path, 7)
    [file] = kept(tmp_path)

    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
