"""Stage processes measure what sums take while nobody is answered, and no answer waits for that.

No step is computed here before the last test: these processes would be busy for a moment after it.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path

import msgspec
import patient_stage
import pytest
from fake_cluster import Run
from patient_stage import PATIENCE_S
from stage_nodes import CHAT, Driver, StageNode, step

from potluck.cluster.processes import stage_process
from potluck.cluster.processes.stage_process import HandleTimes
from potluck.cluster.processes.start import start_process
from potluck.cluster.stage.sum_times import EPOCH
from potluck.errors import BusyError, PeerLostError, UnreachableError
from potluck.net.transport import Link
from potluck.store.registry import LocalModel
from potluck.wire.measuring_messages import SumsMeasured
from potluck.wire.messages import Address, RankPlace
from potluck.wire.rank_messages import JoinRanks, Partial

pytestmark = [pytest.mark.slow, pytest.mark.net]


@pytest.fixture(scope="module")
def nodes(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StageNode, StageNode]]:
    """Two nodes as those of other files, which wait longer for sums: whether one is waited for is seen, not timed."""
    folder = tmp_path_factory.mktemp("nodes")
    times = HandleTimes(sums_s=2 * PATIENCE_S)
    desk = StageNode("Desk", folder / "desk", times=times)
    laptop = StageNode("Laptop", folder / "laptop", desk.identity, times)

    async def patient(
        _: str, log_path: Path, environment: Mapping[str, str], *, engine: Path | None
    ) -> asyncio.subprocess.Process:
        return await start_process(patient_stage.__name__, log_path, environment, engine=engine)

    async def both(*calls: Coroutine[None, None, None]) -> None:
        await asyncio.gather(*calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setattr(stage_process, "start_process", patient)
        runner.run(both(desk.handle.start(), laptop.handle.start()))
    yield desk, laptop
    runner.run(both(desk.handle.stop(), laptop.handle.stop()))
    assert desk.exits == laptop.exits == []  # none died of what the tests did


async def measure_with_one_that_stands_still(
    desk: StageNode, laptop: StageNode
) -> tuple["asyncio.Task[SumsMeasured]", Link]:
    """Have the laptop sum with one that says nothing more than that it is there, until it waits for its part."""
    place = RankPlace(rank=1, hops=(desk.hop, laptop.hop))
    measuring = asyncio.create_task(laptop.handle.measure_sums(desk.home, place))
    still = await desk.connect(laptop, "ranks")
    await still.send(JoinRanks(epoch=EPOCH, rank=0))
    async with asyncio.timeout(10):
        assert isinstance((await still.receive())[0], Partial)
    return measuring, still


def test_ranks_without_layers_measure_what_sums_take(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        hops = desk.hop, laptop.hop
        home = desk.home
        only_asked = await desk.handle.measure_sums(home, None)
        assert [a.port for a in desk.hop.addresses] == [only_asked.activation_port]
        for _ in range(2):
            measured = await asyncio.gather(
                *(
                    node.handle.measure_sums(home, RankPlace(rank=rank, hops=hops))
                    for rank, node in enumerate((desk, laptop))
                )
            )
            sizes = [[each.nbytes for each in one.times] for one in measured]
            assert sizes == [[16 << 10, 2 << 20]] * 2
            assert all(each.ms > 0 for one in measured for each in one.times)
        nobody = msgspec.structs.replace(laptop.hop, addresses=(Address(host="127.0.0.1", port=1),))
        with pytest.raises(UnreachableError):
            await desk.handle.measure_sums(home, RankPlace(rank=0, hops=(desk.hop, nobody)))

    run(main())


def test_sums_that_nobody_waits_for_any_more_end(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        measuring, still = await measure_with_one_that_stands_still(desk, laptop)
        measuring.cancel()
        async with asyncio.timeout(PATIENCE_S / 2):  # sooner than it would give up the sum
            await still.wait_closed()

    run(main())


def test_answers_do_not_wait_for_sums_with_a_computer_that_stands_still(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await laptop.load(laptop.stage(model, range(model.config.num_layers)))
        measuring, still = await measure_with_one_that_stands_still(desk, laptop)
        async with Driver(desk, laptop) as pipeline:
            pipeline.open(CHAT)
            await step(pipeline, 0, [1, 2, 3])
            assert not measuring.done()
            still.close()
            with pytest.raises(PeerLostError):
                await measuring

            await step(pipeline, 3, [4], number=2)
            with pytest.raises(BusyError):
                await laptop.handle.measure_sums(
                    desk.home, RankPlace(rank=1, hops=(desk.hop, laptop.hop))
                )
        await laptop.handle.unload()

    run(main())
