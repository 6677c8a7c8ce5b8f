"""The engine of a computer: a state, installed with consent, and given to the stage processes."""

import asyncio
import hashlib
from collections.abc import Generator
from pathlib import Path

import pytest
from tiny_wheels import TORCH, lock_text, make_wheels, wheel_of, zip_wheel
from wheel_server import WheelServer, serving

from potluck.api.values.engine import EngineRequest
from potluck.cluster.runtime.fetching import WheelFetcher
from potluck.cluster.runtime.keeper import EngineKeeper, Release
from potluck.cluster.runtime.sharing import WheelClient
from potluck.errors import UsageError
from potluck.ids import Digest
from potluck.net.identity import Identity
from potluck.runtime.choice import Machine
from potluck.runtime.download import Internet, Patience
from potluck.runtime.installed import Installed
from potluck.runtime.lock import read_lock
from potluck.store.chunks import ChunkStore
from potluck.wire.messages import NodeInfo

pytestmark = pytest.mark.net

ME = NodeInfo(node_id="ab" * 32, name="attic", version="1", os="Linux", arch="x86_64")
INSTALL = EngineRequest(action="install")
REPAIR = EngineRequest(action="repair")


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return make_wheels(tmp_path / "made", filling=100_000)


@pytest.fixture
def internet(paths) -> Generator[WheelServer]:
    with serving(WheelServer({f"/{path.name}": path.read_bytes() for path in paths})) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Generator[ChunkStore]:
    with ChunkStore(tmp_path / "data" / "engine" / "wheels", reserve=0) as store:
        yield store


def keeper(store, paths, index: str | None, *, has_torch=False, seen=None) -> EngineKeeper:
    """A keeper whose release lists these files for this computer."""
    lock = read_lock(lock_text(paths).encode())
    this = Machine.of_this()
    machine = Machine(system="Linux", processor="x86_64", gpus=None, environment=this.environment)
    identity = Identity.load_or_create(store.root.parent / "identity", "attic")
    client = WheelClient(identity, me=lambda: ME, store=store)
    patience = Patience(silent_s=5.0, attempts=1, pause_s=0.001)
    return EngineKeeper(
        store,
        Installed(store.root.parent),
        fetcher=WheelFetcher(
            store,
            client,
            sources=lambda: (),
            internet=Internet(store, index=index, patience=patience),
        ),
        release=Release(
            locks=lambda: {"cpu": lock}, machine=lambda: machine, has_torch=lambda: has_torch
        ),
        changed=(lambda: None) if seen is None else (lambda: seen.append(None)),
    )


async def done(keeper: EngineKeeper) -> None:
    assert keeper._working is not None
    async with asyncio.timeout(60):
        await asyncio.wait([keeper._working])


def test_a_missing_engine_is_a_state_with_its_size_and_nothing_is_fetched(
    store, paths, internet
) -> None:
    async def look() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()

        assert its.state.phase == "missing"
        assert its.state.nbytes == sum(path.stat().st_size for path in paths)
        assert not its.is_there
        assert "potluck engine install" in its.lacking().message
        assert internet.asked == []

    asyncio.run(look())


def test_an_engine_is_fetched_unpacked_and_given_out(store, paths, internet) -> None:
    async def install() -> None:
        phases: list[str] = []
        its = keeper(store, paths, f"{internet.address}/simple")
        its._changed = lambda: phases.append(its.state.phase)
        await its.look()
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)

        assert its.state.phase == "ready"
        assert its.state.from_internet == sum(path.stat().st_size for path in paths)
        folder = its.folder()
        assert folder is not None
        assert (folder / "torch" / "__init__.py").exists()
        assert [p for n, p in enumerate(phases) if phases[n - 1 : n] != [p]] == [
            "missing", "fetching", "unpacking", "ready",
        ]  # fmt: skip

    asyncio.run(install())


def test_the_next_node_finds_it(store, paths, internet) -> None:
    async def install() -> None:
        first = keeper(store, paths, f"{internet.address}/simple")
        await first.look()
        await first.change(INSTALL)
        await asyncio.wait_for(first.wait(), 60)

        second = keeper(store, paths, None)
        assert second.is_there
        assert second.state.phase == "ready"
        assert second.state.version == "2.13.0"

    asyncio.run(install())


def test_an_engine_of_another_release_stays_until_a_person_asks_for_the_new_one(
    store, paths, internet, tmp_path: Path
) -> None:
    newer = zip_wheel(tmp_path / "torch-2.13.1-py3-none-any.whl", TORCH, version="2.13.1")
    internet.files[f"/{newer.name}"] = newer.read_bytes()

    async def install() -> None:
        index = f"{internet.address}/simple"
        first = keeper(store, paths, index)
        await first.look()
        await first.change(INSTALL)
        await asyncio.wait_for(first.wait(), 60)

        second = keeper(store, [newer], index)
        await second.look()
        assert second.state.phase == "ready"
        assert "another one" in second.state.message
        await second.change(INSTALL)
        await done(second)
        assert second.state.version == "2.13.1"
        assert "next time" in second.state.message
        assert second.does_not_work()  # the one before is there still
        assert keeper(store, paths, None).state.version == "2.13.0"

    asyncio.run(install())


def test_a_disk_without_room_for_what_is_unpacked_is_said_first(store, paths, internet) -> None:
    async def install() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()
        store.disk_free = lambda _: 2 * its.state.nbytes
        await its.change(INSTALL)
        await done(its)
        assert its.state.phase == "failed"
        assert "The engine needs" in its.state.message
        assert internet.asked == []

    asyncio.run(install())


def test_a_repair_fetches_what_the_disk_has_altered_and_replaces_the_engine(
    store, paths, internet
) -> None:
    async def repair() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)
        before = its.folder()
        wheel = next(iter(its.listed().values()))
        store.path(wheel.digest).write_bytes(bytes(wheel.nbytes))
        fetched = its.state.from_internet

        await its.change(REPAIR)
        assert its.is_there  # it is used on
        assert its.folder() == before
        await done(its)

        assert its.state.phase == "ready"
        assert not its.state.failed
        assert its.folder() != before
        assert its.state.from_internet == fetched + wheel.nbytes

    asyncio.run(repair())


def test_a_repair_without_a_source_leaves_the_engine_as_it_is(store, paths, internet) -> None:
    async def repair() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)
        before = its.folder()
        for digest in its.listed():
            store.discard(digest)
        its._fetcher._internet = Internet(store, index=None)

        await its.change(REPAIR)
        await done(its)

        assert (its.state.phase, its.state.failed) == ("ready", True)
        assert "No computer of your home" in its.state.message
        assert its.is_there
        assert its.folder() == before

    asyncio.run(repair())


class Trial:
    """Hears of a trial: its torch connects when it is imported, and goes on when it is told so."""

    def __init__(self) -> None:
        self.tried: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )

    async def listen(self, folder: Path) -> tuple[asyncio.Server, Path]:
        """Returns what listens, and the wheel of that torch."""

        async def connected(reader, writer) -> None:
            await self.tried.put((reader, writer))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        waits = f"import socket\nsocket.create_connection(('127.0.0.1', {port})).recv(1)\n"
        text = waits.encode() + TORCH["torch/__init__.py"]
        wheel = zip_wheel(folder / "torch-2.13.0-py3-none-any.whl", {"torch/__init__.py": text})
        return server, wheel


def test_an_install_that_is_stopped_while_it_is_tried_ends_and_can_be_begun_again(
    store, internet, tmp_path: Path
) -> None:
    async def install() -> None:
        trial = Trial()
        server, wheel = await trial.listen(tmp_path)
        internet.files[f"/{wheel.name}"] = wheel.read_bytes()
        async with server, asyncio.timeout(60):
            its = keeper(store, [wheel], f"{internet.address}/simple")
            await its.look()
            await its.change(INSTALL)
            reader, writer = await trial.tried.get()

            state = await its.change(EngineRequest(action="stop"))

            await done(its)
            assert await reader.read() == b""  # the process is gone
            writer.close()
            assert state.phase == its.state.phase == "missing"
            assert not its.is_there
            assert its.folder() is None

            await its.change(INSTALL)
            _, writer = await trial.tried.get()
            writer.write(b"1")
            await its.wait()
            writer.close()
            assert its.state.phase == "ready"

    asyncio.run(install())


def test_stopping_while_the_one_before_is_used_leaves_that_one(
    store, paths, internet, tmp_path: Path
) -> None:
    async def install() -> None:
        index = f"{internet.address}/simple"
        first = keeper(store, paths, index)
        await first.look()
        await first.change(INSTALL)
        await asyncio.wait_for(first.wait(), 60)
        folder = first.folder()

        trial = Trial()
        server, wheel = await trial.listen(tmp_path)
        internet.files[f"/{wheel.name}"] = wheel.read_bytes()
        async with server, asyncio.timeout(60):
            second = keeper(store, [wheel], index)
            await second.look()
            await second.change(INSTALL)
            _, writer = await trial.tried.get()
            await second.change(EngineRequest(action="stop"))
            await done(second)
            writer.close()

        assert second.is_there
        assert second.state.phase == "ready"
        assert second.folder() == folder

    asyncio.run(install())


def test_an_error_that_nobody_expects_is_a_state_and_not_for_ever_a_download(
    store, paths, internet
) -> None:
    async def install() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()

        def no_disk(_: Path) -> int:
            raise LookupError("nobody expects this")

        store.disk_free = no_disk
        await its.change(INSTALL)
        await done(its)
        assert its.state.phase == "failed"
        assert its.state.failed
        assert "potluck logs" in its.state.message

    asyncio.run(install())


def test_an_own_torch_needs_nothing(store, paths) -> None:
    async def look() -> None:
        its = keeper(store, paths, None, has_torch=True)
        await its.look()
        assert (await its.change(INSTALL)).phase == "own"

        assert its.is_there
        assert its.folder() is None
        assert store.nbytes == 0

    asyncio.run(look())


def test_without_a_source_the_state_says_what_helps_and_it_can_be_tried_again(
    store, paths, internet
) -> None:
    async def install() -> None:
        its = keeper(store, paths, None)
        await its.look()
        await its.change(INSTALL)
        await done(its)
        assert its.state.phase == "failed"
        assert "No computer of your home" in its.state.message

        its._fetcher._internet = Internet(store, index=f"{internet.address}/simple")
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)

    asyncio.run(install())


def test_an_engine_that_does_not_work_is_a_state(store, tmp_path: Path) -> None:
    broken = zip_wheel(
        tmp_path / "torch-2.13.0-py3-none-any.whl", {"torch/__init__.py": b"import no_such_thing"}
    )

    async def install() -> None:
        with serving(WheelServer({f"/{broken.name}": broken.read_bytes()})) as internet:
            its = keeper(store, [broken], f"{internet.address}/simple")
            await its.look()
            await its.change(INSTALL)
            await done(its)

            assert its.state.phase == "failed"
            assert "does not work" in its.state.message
            assert its.folder() is None

    asyncio.run(install())


def test_wheels_of_the_owner_are_installed_and_kept_for_others_if_they_are_listed(
    store, paths
) -> None:
    async def install() -> None:
        its = keeper(store, paths, None)
        await its.look()
        await its.change(EngineRequest(action="install", folder=str(paths[0].parent)))
        await asyncio.sleep(0)
        assert (
            its.state.is_working
        )  # while the wheels are read: who follows it must not take it for over
        await asyncio.wait_for(its.wait(), 60)

        assert its.state.variant == "own"
        assert store.has(next(iter(its.listed())))
        with pytest.raises(UsageError, match="cannot fetch this engine again"):
            await its.change(REPAIR)
        await its.change(EngineRequest(action="remove"))
        assert its.state.variant == "cpu"

    asyncio.run(install())


def test_a_folder_without_torch_is_named(store, paths, tmp_path: Path) -> None:
    async def install() -> None:
        its = keeper(store, paths, None)
        await its.look()
        await its.change(EngineRequest(action="install", folder=str(tmp_path)))
        await done(its)
        assert its.state.phase == "failed"
        assert f"{tmp_path} has no wheel of torch" in its.state.message
        with pytest.raises(UsageError, match="whole path"):
            await its.change(EngineRequest(action="install", folder="here"))

    asyncio.run(install())


def test_a_removed_engine_leaves_nothing(store, paths, internet) -> None:
    async def install() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)

        state = await its.change(EngineRequest(action="remove"))

        assert state.phase == "missing"
        assert not its.is_there
        assert store.nbytes == 0
        assert not list(store.root.parent.glob("[0-9a-f]*"))

    asyncio.run(install())


def test_a_release_without_an_engine_for_this_computer_says_so(store, paths) -> None:
    async def look() -> None:
        its = keeper(store, paths, None)
        its._release = Release(
            locks=dict,
            machine=lambda: Machine(
                system="Windows",
                processor="ARM64",
                gpus=None,
                environment=Machine.of_this().environment,
            ),
            has_torch=lambda: False,
        )
        await its.look()

        assert its.state.phase == "none"
        with pytest.raises(UsageError, match="Windows on Arm"):
            await its.change(INSTALL)

    asyncio.run(look())


def test_what_two_computers_ask_for_is_fetched_side_by_side(store, paths, internet) -> None:
    async def fetch() -> None:
        its = keeper(store, paths, f"{internet.address}/simple")
        await its.look()
        torch, sympy = map(wheel_of, paths)

        assert its.fetch_for_others([torch]) == ""
        assert its.fetch_for_others([torch]) == ""  # it comes already
        assert its.fetch_for_others([torch, sympy]) == ""
        assert its.is_busy
        assert len(its._for_others) == 2

        async with asyncio.timeout(60):
            await asyncio.wait(list(its._tasks._tasks))
        assert store.has(torch.digest, torch.nbytes)
        assert store.has(sympy.digest, sympy.nbytes)
        assert not its.is_busy

    asyncio.run(fetch())


def test_files_that_no_release_lists_any_more_are_deleted(store, paths, tmp_path: Path) -> None:
    old = zip_wheel(tmp_path / "old.whl", {"a": b"old"})

    async def look() -> None:

        its = keeper(store, paths, None)
        kept = wheel_of(paths[0])
        store.write(kept.digest, 0, kept.nbytes, paths[0].read_bytes())

        digest = Digest(hashlib.sha256(old.read_bytes()).hexdigest())
        store.write(digest, 0, old.stat().st_size, old.read_bytes())
        await its.look()
        await its.clean()

        assert store.has(kept.digest)
        assert not store.has(digest)

    asyncio.run(look())
