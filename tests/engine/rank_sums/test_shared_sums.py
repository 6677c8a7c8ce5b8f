"""Ranks sum in memory that they share: here as threads, each with a mapping of its own."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from potluck.engine.kernels.decoding.sum_kernel import PIECE, tag_of
from potluck.engine.rank_sums.shared_memory import SharedMemory
from potluck.engine.rank_sums.shared_sums import SharedSums, shared_bytes
from potluck.errors import OutOfMemoryError, PeerTimeoutError, RankLostError

PATIENCE_S = 20.0


class Group:
    """Ranks in threads. What `given_up` has is raised by a rank that waits."""

    def __init__(self, world: int, patience_s: float = PATIENCE_S) -> None:
        made = SharedMemory.create(shared_bytes(world))
        mappings = [made, *(SharedMemory.open(made.place, made.nbytes) for _ in range(1, world))]
        made.hide()
        self.given_up: Exception | None = None
        self.ranks = [
            SharedSums(mapping, rank, world, look=self._look, patience_s=patience_s)
            for rank, mapping in enumerate(mappings)
        ]
        self._threads = ThreadPoolExecutor(world)

    def _look(self) -> None:
        if self.given_up is not None:
            raise self.given_up

    def each(self, work: Callable[[int, SharedSums], Tensor]) -> list[Tensor]:
        return list(self._threads.map(work, range(len(self.ranks)), self.ranks))

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def group() -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(*arguments: float, **options: float) -> Group:
        made.append(Group(*arguments, **options))  # pyright: ignore[reportArgumentType]
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows(rank: int, number: int, count: int) -> Tensor:
    """Of which sums in another order have other bits."""
    made = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randn(count, generator=made) * 10.0 ** (3 * rank)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_ranks_have_the_sum_in_the_order_of_the_ranks(
    group: Callable[..., Group], world: int
) -> None:
    sizes = (1, 15, 16, 2048, 7, PIECE, PIECE + 1, 5 * PIECE + 33)

    def add(rank: int, sums: SharedSums) -> Tensor:
        found: list[Tensor] = []
        for step in range(1, 40):
            sums.begin(step)
            for number, size in enumerate(sizes[step % 3 :]):  # odd and even numbers of sums
                found.append(rows(rank, number, size))
                sums.sum(found[-1])
        return torch.cat(found)

    found = group(world).each(add)

    expected: list[Tensor] = []
    for step in range(1, 40):
        for number, size in enumerate(sizes[step % 3 :]):
            total = rows(0, number, size)
            for rank in range(1, world):
                total = total + rows(rank, number, size)
            expected.append(total)
    for one in found:
        assert torch.equal(one, torch.cat(expected))


def test_a_rank_that_waits_hears_why_a_step_is_given_up_and_the_next_one_is_done(
    group: Callable[..., Group],
) -> None:
    pair = group(2)
    pair.given_up = OutOfMemoryError("The memory is full.")
    waits, other = pair.ranks
    waits.begin(1)
    with pytest.raises(OutOfMemoryError):
        waits.sum(torch.ones(4))
    numbers = torch.ones(4)
    with pytest.raises(RankLostError):  # what follows in a step that has failed is not summed
        waits.sum(numbers)
    assert torch.equal(numbers, torch.ones(4))

    pair.given_up = None

    def add(_: int, sums: SharedSums) -> Tensor:
        sums.begin(2)
        numbers = torch.ones(4)
        sums.sum(numbers)
        return numbers

    other.begin(1)
    assert all(torch.equal(one, torch.full((4,), 2.0)) for one in pair.each(add))


def test_a_rank_that_never_comes_is_waited_for_so_long_and_no_longer(
    group: Callable[..., Group],
) -> None:
    waits, _ = group(2, patience_s=0.05).ranks
    waits.begin(1)

    with pytest.raises(PeerTimeoutError, match="hangs"):
        waits.sum(torch.ones(4))


def test_threads_of_kernels_are_woken_after_a_longer_wait(group: Callable[..., Group]) -> None:
    pair, woken = group(2), threading.Event()
    early, late = pair.ranks
    early.wakes(woken.set)
    looked = threading.Event()
    early._look = looked.set  # pyright: ignore[reportPrivateUsage]

    def add(rank: int, sums: SharedSums) -> Tensor:
        sums.begin(1)
        if rank:
            assert looked.wait(PATIENCE_S)
        numbers = torch.ones(4)
        sums.sum(numbers)
        return numbers

    pair.each(add)
    assert woken.is_set()
    assert late.address == early.address  # one function for a number of ranks
    assert late.argument != early.argument


def test_equal_tags_are_equal_pieces() -> None:
    assert tag_of(1, 0) > 0  # memory begins with zeros
    assert len({tag_of(step, piece) for step in range(1, 9) for piece in range(99)}) == 8 * 99
