"""Matrices are packed once, into the store, and nothing of a failure stays there."""

import asyncio
from pathlib import Path

import pytest
from chunk_stores import is_intact
from fake_cluster import run, until
from packing_engine import Workplace

from potluck.cluster.master import packing as packing_module
from potluck.cluster.master.packing import AT_A_TIME, Matrix
from potluck.cluster.processes.messages import TensorFile
from potluck.errors import BrokenModelError, DiskFullError
from potluck.ids import Digest, ModelId
from potluck.model.formats import INT4
from potluck.store.quantised import Packed
from potluck.wire.messages import TensorInfo


def matrix(number: int, rows: int = 16, width: int = 32) -> Matrix:
    info = TensorInfo(
        name=f"matrix {number}",
        dtype="BF16",
        shape=(rows, width),
        digest=f"{number:064x}",
        nbytes=2 * rows * width,
    )
    return Matrix(
        model=ModelId("ab" * 32),
        name=info.name,
        config={},
        shape=(rows, width),
        format=INT4,
        files=(TensorFile.of(info, Path("/nowhere")),),
    )


def packing(workplace: Workplace, *matrices: Matrix) -> "asyncio.Task[list[Packed]]":
    async def pack() -> list[Packed]:
        made: dict[str, Packed] = {}
        await workplace.packing.pack(matrices, lambda m, p: made.update({m.name: p}))
        return [made[m.name] for m in matrices]

    return asyncio.create_task(pack())


def test_packed_bytes_are_in_the_store_under_their_digest(workplace: Workplace) -> None:
    async def main() -> None:
        made = await packing(workplace, *map(matrix, range(20)))

        assert len({packed.digest for packed in made}) == 20
        for packed in made:
            assert workplace.store.has(Digest(packed.digest), packed.nbytes)
            assert is_intact(workplace.store, Digest(packed.digest))
        assert workplace.store.nbytes == sum(packed.nbytes for packed in made)

    run(main())


def test_a_matrix_that_two_ask_for_is_packed_once(workplace: Workplace) -> None:
    async def main() -> None:
        workplace.engine.gate = asyncio.Event()
        first, second = packing(workplace, matrix(1)), packing(workplace, matrix(1))
        await until(lambda: workplace.engine.waiting)
        workplace.engine.gate.set()

        assert await first == await second
        assert workplace.engine.packed == {"matrix 1": 1}

    run(main())


def test_only_some_are_packed_at_a_time(workplace: Workplace) -> None:
    async def main() -> None:
        workplace.engine.gate = asyncio.Event()
        all_of_them = packing(workplace, *map(matrix, range(3 * AT_A_TIME)))
        await until(lambda: len(workplace.engine.waiting) == AT_A_TIME)
        for _ in range(20):
            await asyncio.sleep(0)
        assert workplace.engine.waiting == [f"matrix {n}" for n in range(AT_A_TIME)]
        workplace.engine.gate.set()
        await all_of_them

    run(main())


def test_what_is_being_written_is_kept_though_nobody_waits_any_more(workplace: Workplace) -> None:
    async def main() -> None:
        workplace.engine.gate = asyncio.Event()
        abandoned = packing(workplace, matrix(1))
        await until(lambda: workplace.engine.waiting)
        abandoned.cancel()
        await asyncio.wait([abandoned])
        again = packing(workplace, matrix(1))
        workplace.engine.gate.set()
        (packed,) = await again

        assert workplace.engine.packed == {"matrix 1": 1}
        assert workplace.store.has(Digest(packed.digest))

    run(main())


def test_stopping_ends_what_is_under_way(workplace: Workplace) -> None:
    async def main() -> None:
        workplace.engine.gate = asyncio.Event()
        waiting = packing(workplace, matrix(1))
        await until(lambda: workplace.engine.waiting)
        await workplace.packing.stop()

        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert not workplace.engine.packed

    run(main())


def test_an_error_is_the_one_of_the_engine_and_the_next_try_is_a_new_one(
    workplace: Workplace,
) -> None:
    async def main() -> None:
        workplace.engine.error = BrokenModelError("A weight is not a number.")
        with pytest.raises(BrokenModelError, match="not a number"):
            await packing(workplace, *map(matrix, range(9)))
        await packing(workplace, *map(matrix, range(9)))

        assert set(workplace.engine.packed) == {f"matrix {n}" for n in range(9)}

    run(main())


def test_what_the_disk_has_no_room_for_is_not_begun(tmp_path: Path) -> None:
    async def main() -> None:
        with Workplace(tmp_path, quota=1000) as workplace:
            with pytest.raises(DiskFullError):
                await packing(workplace, *map(matrix, range(4)))

            assert not workplace.engine.waiting

    run(main())


def test_the_rate_is_what_was_measured_last(tmp_path: Path) -> None:
    now = 10.0

    async def main() -> None:
        nonlocal now
        with Workplace(tmp_path, measurable=2000, clock=lambda: now) as workplace:
            usual = workplace.packing.rate
            assert usual >= packing_module.CORE_RATE
            await pack_for(workplace, 0.25, matrix(1))  # 1024 bytes are too few to say
            assert workplace.packing.rate == usual
            await pack_for(workplace, 0.25, matrix(2), matrix(3))
            assert workplace.packing.rate == 2048 / 0.5
            assert workplace.packing.pays(4000.0)
            assert not workplace.packing.pays(5000.0)
            assert workplace.packing.pays(None)
            now += packing_module.RATE_AGE_S
            assert workplace.packing.rate == usual

    async def pack_for(workplace: Workplace, seconds: float, *matrices: Matrix) -> None:
        """Each takes so long, one after the other."""

        def done(matrix: Matrix, packed: Packed) -> None:
            nonlocal now
            now += seconds

        await workplace.packing.pack(matrices, done)

    run(main())


def test_packing_that_is_slower_than_the_link_is_given_up(tmp_path: Path) -> None:
    made: list[str] = []

    async def main() -> None:
        with Workplace(tmp_path, measurable=1, core_rate=1e18) as workplace:
            await workplace.packing.pack(
                [matrix(number) for number in range(5 * AT_A_TIME)],
                lambda matrix, _: made.append(matrix.name),
                link_rate=1e15,
            )

            assert 1 <= len(made) <= AT_A_TIME
            assert sorted(made) == sorted(workplace.engine.packed)

    run(main())
