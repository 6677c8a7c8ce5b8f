"""When a master lays spare copies on the workers' disks, and which."""

import asyncio

import pytest
from fake_cluster import FakeComputer, failing, run, until
from fake_home import Home, small

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.deadlines import DEADLINES
from potluck.cluster.master.spare_copies import AGAIN_S
from potluck.cluster.worker.assignments import check_assignment, check_spares
from potluck.errors import EngineError
from potluck.store.registry import LocalModel
from potluck.wire.shares import RankShare

QUIET_S = DEADLINES.quiet_s
THREE = PlanRequest(layers=(("Desk", 1), ("Laptop", 2), ("Mac", 1)), context=64)


class Three(Home):
    """A slow desk, and two fast workers."""

    def __init__(self, model: LocalModel) -> None:
        super().__init__(model)
        self.mac = FakeComputer("Mac", 3)
        self.computers.workers.append(self.mac)
        self.desk._ms = 1000.0

    async def rest(self, seconds: float = QUIET_S) -> None:
        """Nobody asks for anything for so long."""
        spares, deployment = self.master.spares, self.master.deployment
        spares.look(deployment, 0.0)
        spares.look(deployment, seconds)
        await until(lambda: not spares.is_sending)


@pytest.fixture
def home(model: LocalModel) -> Three:
    return Three(model)


def test_each_worker_gets_what_it_would_lack_without_the_other_one(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        await home.rest()

        kept = {c.name: c.kept[-1] for c in (home.laptop, home.mac)}
        assert kept["Laptop"].layers == (0, 3)
        assert kept["Mac"].layers == (0, 1, 2)
        assert kept["Mac"].embedding
        copy = home.master.spares.copies[home.mac.node_id]
        assert copy.layers == 3
        assert copy.stored == copy.nbytes == sum(info.nbytes for info in kept["Mac"].tensors)
        assert home.desk.kept == []

    run(main())


def test_nothing_is_sent_before_all_was_quiet_for_a_while(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        await home.rest(QUIET_S - 0.1)
        assert home.mac.kept == []

    run(main())


def test_a_request_ends_the_transfer_which_goes_on_later(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        home.laptop.stores_weights = home.mac.stores_weights = False
        home.laptop.gates["send_weights"] = home.mac.gates["send_weights"] = asyncio.Event()
        spares, deployment = home.master.spares, home.master.deployment
        spares.look(deployment, 0.0)
        spares.look(deployment, QUIET_S)
        await until(lambda: home.laptop.kept or home.mac.kept)

        await home.master.ready(THREE)
        await until(lambda: not spares.is_sending)
        assert [copy.stored for copy in spares.copies.values()] == [0]
        home.laptop.gates["send_weights"].set()
        await home.rest()
        assert all(copy.stored == copy.nbytes for copy in spares.copies.values())
        assert len(spares.copies) == 2

    run(main())


def test_what_is_laid_is_laid_once(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        await home.rest()
        home.master.spares.look(home.master.deployment, 2 * QUIET_S)
        assert not home.master.spares.is_sending

    run(main())


def test_one_that_cannot_keep_anything_keeps_no_other_from_it(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        home.laptop.errors["keep"] = failing(EngineError("No."))
        await home.rest()
        assert set(home.master.spares.copies) == {home.mac.node_id}

    run(main())


def test_one_that_failed_is_asked_again_after_a_while_without_a_request(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        home.laptop.errors["keep"] = failing(EngineError("No."))
        await home.rest()
        await home.rest(QUIET_S + AGAIN_S - 1)
        assert set(home.master.spares.copies) == {home.mac.node_id}
        await home.rest(QUIET_S + AGAIN_S)
        assert set(home.master.spares.copies) == {home.mac.node_id, home.laptop.node_id}

    run(main())


def test_a_model_that_does_not_fit_without_a_computer_needs_no_copies(home: Three) -> None:
    async def main() -> None:
        await home.master.load(THREE)
        for computer in (home.desk, home.laptop, home.mac):
            computer.devices = (small(computer, 1),)
        await home.rest()
        assert not home.laptop.kept
        assert not home.mac.kept

    run(main())


@pytest.mark.parametrize("pays", [True, False])
def test_what_a_better_plan_moves_is_sent_before_it_if_that_pays(home: Three, pays: bool) -> None:
    async def main() -> None:
        before = (await home.master.load(THREE)).planned
        better = await home.master.plan(PlanRequest(layers=(("Laptop", 4),), context=64))
        home.laptop.stores_weights = False
        sent = home.laptop.calls.count("send_weights")
        asked: list[int] = []

        def worth(nbytes: int, rate: float) -> bool:
            asked.append(nbytes)
            return pays

        assert await home.master.spares.send_for(better, before, worth) is pays
        assert home.laptop.kept[-1].layers == (0, 3)
        assert asked == [sum(info.nbytes for info in home.laptop.kept[-1].tensors)]
        assert home.laptop.calls.count("send_weights") - sent == pays

    run(main())


def test_a_rank_of_a_better_plan_is_sent_its_slices_beforehand(home: Three) -> None:
    """And after the loss of the other rank it would have all layers, so it gets whole ones when all is quiet."""

    async def main() -> None:
        before = (await home.master.load(THREE)).planned
        group = PlanRequest(layers=(("Laptop+Mac", 4),), context=64)
        better = await home.master.plan(group)
        home.laptop.stores_weights = False
        assert await home.master.spares.send_for(better, before, lambda *_: True)
        keep = home.laptop.kept[-1]
        assert keep.share == RankShare(rank=0, shares=(1, 1))
        assert check_spares(keep).keys() == {info.digest for info in keep.tensors}
        cut = [info for info in keep.tensors if info.whole is not None]
        assert {info.name.split(".")[2] for info in cut} == {"0", "3"}  # of the others it has all

        await home.master.load(group)
        assigned = home.laptop.assigned[-1]
        assert {info for info in assigned.tensors if info.whole is not None} > set(cut)
        assert check_assignment(assigned)
        home.laptop.kept.clear()
        await home.rest()
        assert home.laptop.kept[-1].share is None
        assert home.laptop.kept[-1].layers == (0, 1, 2, 3)

    run(main())
