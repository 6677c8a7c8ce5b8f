"""The engine's files come from the home first, then from the Internet, then by a computer that has it."""

import asyncio
import hashlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest
from tiny_wheels import wheel_of
from wheel_server import WheelServer, serving

from potluck.cluster.runtime.fetching import Coming, WheelFetcher
from potluck.cluster.runtime.sharing import Source
from potluck.errors import DiskFullError, HubError
from potluck.ids import Digest, NodeId
from potluck.runtime.download import Internet, Patience
from potluck.runtime.lock import Wheel
from potluck.store.chunks import ChunkStore
from potluck.wire.messages import Chunk
from potluck.wire.wheel_messages import SendWheels

pytestmark = pytest.mark.net

QUICK = Patience(silent_s=5.0, attempts=1, pause_s=0.001)


@pytest.fixture
def internet(paths) -> Generator[WheelServer]:
    with serving(WheelServer({f"/{path.name}": path.read_bytes() for path in paths})) as server:
        yield server


def fetcher(
    computer,
    sources: Sequence[Source],
    index: str | None = None,
    *,
    found: Callable[[], Sequence[Source]] | None = None,
    off: Sequence[NodeId] = (),
) -> WheelFetcher:
    """What brings wheels to a computer from these sources, or from those that are found at each look; paired ones are `off`."""
    return WheelFetcher(
        computer.store,
        computer.client,
        sources=found or (lambda: sources),
        paired=lambda: {*off, *(one.node_id for one in sources)},
        internet=Internet(computer.store, index=index, patience=QUICK),
        poll_s=0.001,
    )


def has(computer, wheels: list[Wheel]) -> bool:
    return all(computer.store.has(wheel.digest, wheel.nbytes) for wheel in wheels)


def test_the_home_comes_before_the_internet(home, paths, internet) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    home.master.put(paths[0])
    coming = Coming()

    async def obtain() -> None:
        sources = [home.master.source(home.id)]
        await fetcher(study, sources, f"{internet.address}/simple").obtain(wheels, coming)

    home.run(obtain)

    assert has(study, wheels)
    assert coming.from_home == wheels[0].nbytes
    assert coming.from_internet == wheels[1].nbytes
    assert coming.here == {wheel.digest: wheel.nbytes for wheel in wheels}


def test_a_paired_computer_that_is_off_is_waited_for_once(
    home, paths, internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.runtime.fetching.FOUND_S", 0.2)
    study = home.add("study")
    wheels = study.list(*paths)
    looks: list[int] = []

    def look() -> Sequence[Source]:
        looks.append(len(looks))
        return ()

    async def obtain() -> None:
        off = [NodeId("7" * 64), NodeId("8" * 64)]
        its = fetcher(study, (), f"{internet.address}/simple", found=look, off=off)
        await its.obtain(wheels[:1], Coming())
        assert len(looks) > 1

        looks.clear()
        await its.obtain(wheels, Coming())
        assert len(looks) == 1

    home.run(obtain)


def test_a_paired_computer_that_is_not_found_yet_is_waited_for(home, paths, internet) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    for path in paths:
        home.master.put(path)
    coming, looks = Coming(), iter([(), ()])

    async def obtain() -> None:
        sources = [home.master.source(home.id)]
        index = f"{internet.address}/simple"
        its = fetcher(study, sources, index, found=lambda: next(looks, sources))
        await its.obtain(wheels, coming)

    home.run(obtain)

    assert coming.from_home == sum(wheel.nbytes for wheel in wheels)
    assert internet.asked == []


def test_a_computer_that_sends_other_bytes_is_left_for_the_next_one(home, paths) -> None:
    study, kitchen = home.add("study"), home.add("kitchen")
    wheels = home.master.list(*paths)
    for computer in (study, kitchen):
        computer.list(*paths)
        for path in paths:
            computer.put(path)
    damaged = study.store.path(wheels[0].digest)
    damaged.write_bytes(bytes(wheels[0].nbytes))
    coming = Coming()

    async def obtain() -> None:
        sources = [study.source(home.id), kitchen.source(home.id)]
        await fetcher(home.master, sources).obtain(wheels, coming)

    home.run(obtain)

    assert has(home.master, wheels)
    assert home.master.store.path(wheels[0].digest).read_bytes() == paths[0].read_bytes()


def test_a_computer_that_breaks_the_rules_is_left_for_the_internet(home, paths, internet) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    for path in paths:
        home.master.put(path)
    answer = home.master.server._answer

    async def breaks(link, message) -> None:
        if isinstance(message, SendWheels):  # a piece of a file that nobody asked for
            await link.send(Chunk(digest="0" * 64, offset=7, total=9), b"ab")
        else:
            await answer(link, message)

    home.master.server._answer = breaks
    coming = Coming()

    async def obtain() -> None:
        sources = [home.master.source(home.id)]
        await fetcher(study, sources, f"{internet.address}/simple").obtain(wheels, coming)

    home.run(obtain)

    assert has(study, wheels)
    assert coming.from_home == 0


def test_after_other_bytes_from_the_internet_another_computer_fetches(
    home, paths, internet
) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)

    def fetch(lacking: list[Wheel]) -> str:
        for path in paths:
            if wheel_of(path) in lacking:
                home.master.put(path)
        return ""

    home.master.server._fetch = fetch
    with serving(
        WheelServer({f"/{path.name}": bytes(path.stat().st_size) for path in paths})
    ) as lying:

        async def obtain() -> None:
            its = fetcher(study, [home.master.source(home.id)], f"{lying.address}/simple")
            await its.obtain(wheels, Coming())

        home.run(obtain)

    assert has(study, wheels)


def test_a_computer_that_is_gone_is_left_for_the_internet(home, paths, internet) -> None:
    study, gone = home.add("study"), home.add("gone")
    wheels = study.list(*paths)
    home.computers.remove(gone)
    coming = Coming()

    async def obtain() -> None:
        sources = [home.master.source(home.id)]
        await home.master.listener.stop()
        await fetcher(study, sources, f"{internet.address}/simple").obtain(wheels, coming)

    home.run(obtain)

    assert has(study, wheels)
    assert coming.from_home == 0
    gone.store.close()


def test_without_internet_another_computer_fetches(home, paths, internet) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)
    index = f"{internet.address}/simple"
    running: list[asyncio.Task[None]] = []

    def fetch(lacking: list[Wheel]) -> str:
        if not running:
            its = fetcher(home.master, [], index)
            running.append(asyncio.create_task(its.obtain(list(lacking), Coming(), may_ask=False)))
        return ""

    home.master.server._fetch = fetch

    async def obtain() -> None:
        await fetcher(study, [home.master.source(home.id)]).obtain(wheels, Coming())

    home.run(obtain)

    assert has(study, wheels)
    assert has(home.master, wheels)


def test_without_internet_anywhere_the_sentence_says_what_helps(home, paths) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    home.master.list(*paths)

    async def obtain() -> None:
        await fetcher(study, [home.master.source(home.id)]).obtain(wheels, Coming())

    with pytest.raises(HubError, match="No computer of your home"):
        home.run(obtain)


def test_a_full_disk_is_said_before_anything_is_fetched(
    home, paths, internet, tmp_path: Path
) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    study.store.close()
    study.store = ChunkStore(tmp_path / "small", 1000, reserve=0)

    async def obtain() -> None:
        await fetcher(study, [], f"{internet.address}/simple").obtain(wheels, Coming())

    with pytest.raises(DiskFullError, match="engine needs"):
        home.run(obtain)
    assert internet.asked == []


def test_old_files_make_room_and_those_in_use_do_not(home, paths, internet, tmp_path: Path) -> None:
    study = home.add("study")
    wheels = study.list(*paths)
    study.store.close()
    study.store = ChunkStore(tmp_path / "room", sum(w.nbytes for w in wheels) + 10, reserve=0)
    old = tmp_path / "old"
    old.write_bytes(b"x" * 1000)
    digest = wheel_of(paths[1]).digest
    study.store.write(digest, 0, wheels[1].nbytes, paths[1].read_bytes())
    other = Digest(hashlib.sha256(old.read_bytes()).hexdigest())
    study.store.write(other, 0, 1000, old.read_bytes())

    async def obtain() -> None:
        await fetcher(study, [], f"{internet.address}/simple").obtain(wheels, Coming())

    home.run(obtain)

    assert has(study, wheels)
    assert not study.store.has(other)
