"""Threads share out a product, give what one gives, sleep, wake up, and end."""

import gc
import threading
import time

import pytest
import torch
from kernel_paths import BEST, every_path
from weight_formats import every_format

from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.library import emit_kernel, optimise, target_machine
from potluck.engine.kernels.paths import Path, host_triple
from potluck.engine.kernels.threads_kernel import emit_serve
from potluck.model.formats import INT4, PackedFormat

DEADLINE_S = 30


def threads_of_kernels() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("kernels-")]


def wait_for_end_of(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("threads", [2, 3, 5])
@every_format
@pytest.mark.parametrize("rows", [1, 16, 17, 300])
def test_threads_give_what_one_thread_gives(
    threads: int, weight_format: PackedFormat, rows: int
) -> None:
    one, many = GeneratedKernels(BEST), GeneratedKernels(BEST, threads)
    packed, x = one.pack(torch.randn(rows, 64), weight_format), one.quantise(torch.randn(3, 64))
    alone = one.multiply(packed, x)

    for _ in range(200):  # of which some find the threads spinning, some half asleep
        assert torch.equal(many.multiply(packed, x), alone)

    many.close()


def test_one_thread_is_the_callers() -> None:
    before = threads_of_kernels()

    GeneratedKernels(BEST, 1)

    assert threads_of_kernels() == before


def test_sleeping_threads_are_woken() -> None:
    kernels = GeneratedKernels(BEST, 2)
    packed = kernels.pack(torch.randn(2048, 512), INT4)
    x = kernels.quantise(torch.randn(16, 512))
    expected = GeneratedKernels(BEST).multiply(packed, x)
    assert kernels._threads is not None  # pyright: ignore[reportPrivateUsage]
    job = kernels._threads._job  # pyright: ignore[reportPrivateUsage]
    deadline = time.monotonic() + DEADLINE_S
    for _ in range(3):
        while not job._asleep:  # pyright: ignore[reportPrivateUsage]
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)

        while job._asleep:  # pyright: ignore[reportPrivateUsage]
            assert time.monotonic() < deadline
            assert torch.equal(kernels.multiply(packed, x), expected)

    kernels.close()


def test_threads_end_when_closed_or_forgotten() -> None:
    before = threads_of_kernels()
    closed, forgotten = GeneratedKernels(BEST, 3), GeneratedKernels(BEST, 2)
    started = [thread for thread in threads_of_kernels() if thread not in before]
    assert len(started) == 3

    closed.close()
    del forgotten
    gc.collect()

    wait_for_end_of(started)


@every_path
def test_what_the_caller_may_be_writing_is_read_atomically(path: Path) -> None:
    """A thread that waits looks at the job while the caller writes the next one."""
    machine = target_machine(path, host_triple())
    code = str(optimise(emit_kernel("serve", path, emit_serve), machine))
    waiting = next(part for part in code.split("\n}\n") if "@serve(" in part)

    assert "load atomic i64" in waiting
    assert " load i64" not in waiting
