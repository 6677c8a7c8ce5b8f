"""A link that changes between two plans is measured again at once, and the change is told."""

from collections.abc import Awaitable, Callable

from fake_cluster import run
from fake_home import SPLIT, Home

from potluck.cluster.events import LinkChanged
from potluck.cluster.master.link_watch import LinkWatch
from potluck.plan.cost import LinkCost
from potluck.store.registry import LocalModel
from potluck.wire.messages import Address

POOR = LinkCost(rtt_ms=100.0, bytes_per_s=2.5e6)


class Watched:
    """A home whose links are watched."""

    def __init__(self, model: LocalModel) -> None:
        self.home = Home(model)
        self.told: list[LinkChanged] = []
        self.home.events.on(LinkChanged, self.told.append)
        self.watch = LinkWatch(
            local=self.home.desk,
            connected=self.home.computers.available,
            master=self.home.master,
            events=self.home.events,
        )
        self._now = 0.0

    async def look(self, *, rtt_ms: float | None = None) -> int:
        """Look once, and return how often links were measured until now."""
        self._now += 1.0
        self.home.laptop.least_rtt_s = None if rtt_ms is None else rtt_ms / 1000
        await self.watch.look(self._now)
        return self.home.desk.calls.count("measure_link_to")


def watched(model: LocalModel, scenario: Callable[[Watched], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Watched(model))

    run(main())


def test_a_computer_that_comes_is_measured_once(model: LocalModel) -> None:
    async def scenario(watched: Watched) -> None:
        assert await watched.look() == 1
        assert await watched.look() == 1
        assert watched.told == []

    watched(model, scenario)


def test_a_link_whose_heartbeats_take_longer_is_measured_again(model: LocalModel) -> None:
    async def scenario(watched: Watched) -> None:
        home = watched.home
        assert await watched.look(rtt_ms=0.4) == 1
        home.desk.link = POOR
        assert await watched.look(rtt_ms=100) == 1
        assert await watched.look(rtt_ms=100) == 2

        assert (
            home.master.measurements.links.between(home.desk.node_id, home.laptop.node_id) == POOR
        )
        assert watched.told == [
            LinkChanged(source=home.desk.node_id, target=home.laptop.node_id),
        ]

    watched(model, scenario)


def test_a_link_that_is_found_as_it_was_is_no_change(model: LocalModel) -> None:
    async def scenario(watched: Watched) -> None:
        for rtt_ms in (0.4, 100, 100):
            await watched.look(rtt_ms=rtt_ms)
        assert await watched.look(rtt_ms=100) == 2
        assert watched.told == []

    watched(model, scenario)


def test_a_computer_with_another_address_is_measured_again(model: LocalModel) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.look()
        laptop = watched.home.laptop
        laptop.addresses = (*laptop.addresses, Address(host="169.254.0.2", port=4000))
        watched.home.desk.link = LinkCost(rtt_ms=0.2, bytes_per_s=1e9)
        assert await watched.look() == 2
        assert len(watched.told) == 1

    watched(model, scenario)


def test_tokens_that_are_on_the_way_for_long_have_the_links_of_the_plan_measured(
    model: LocalModel,
) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.look()
        deployment = await watched.home.master.load(SPLIT)
        before = await watched.look()
        assert deployment.pipeline is not None
        watched.home.desk.link = POOR
        looks = [before]
        for _ in range(2):
            stages = deployment.pipeline.stages
            for _ in range(8):
                deployment.pipeline.times.note(0.120, (0.0,) * stages)
            looks.append(await watched.look())

        assert looks[-1] == before + 1
        assert len(watched.told) == 1

    watched(model, scenario)


def test_a_link_over_which_weights_came_slowly_twice_is_measured_again(model: LocalModel) -> None:
    async def scenario(watched: Watched) -> None:
        home = watched.home
        ends = (home.desk.node_id, home.laptop.node_id)
        before = await watched.look()
        home.desk.link = POOR
        looks: list[int] = []
        for _ in range(2):
            home.master.measurements.links.observe(*ends, 1e6, alone=True)
            looks.append(await watched.look())

        assert looks == [before, before + 1]
        assert watched.told == [LinkChanged(source=ends[0], target=ends[1])]

    watched(model, scenario)
