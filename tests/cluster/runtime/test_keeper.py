"""The engine of a computer: a state, installed with consent, and given to the stage processes."""

import asyncio
import hashlib
from pathlib import Path

import pytest
from kept_engine import INSTALL, REPAIR, KeptEngine, done
from tiny_wheels import TORCH, wheel_of, zip_wheel

from potluck.api.values.engine import EngineRequest
from potluck.cluster.runtime.keeper import Release
from potluck.errors import UsageError
from potluck.ids import Digest
from potluck.runtime.choice import Machine
from potluck.runtime.download import Internet

pytestmark = pytest.mark.net


def test_a_missing_engine_is_a_state_with_its_size_and_nothing_is_fetched(
    engine: KeptEngine,
) -> None:
    async def look() -> None:
        its = engine.keeper()
        await its.look()

        assert its.state.phase == "missing"
        assert its.state.nbytes == sum(path.stat().st_size for path in engine.paths)
        assert not its.is_there
        assert "potluck engine install" in its.lacking().message
        assert engine.internet.asked == []

    asyncio.run(look())


def test_an_engine_is_fetched_unpacked_and_given_out_also_by_the_next_node(
    engine: KeptEngine,
) -> None:
    async def install() -> None:
        phases: list[str] = []
        its = engine.keeper(changed=lambda: phases.append(its.state.phase))
        await its.look()
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)

        assert its.state.phase == "ready"
        assert its.state.from_internet == sum(path.stat().st_size for path in engine.paths)
        folder = its.folder()
        assert folder is not None
        assert (folder / "torch" / "__init__.py").exists()
        assert [p for n, p in enumerate(phases) if phases[n - 1 : n] != [p]] == [
            "missing", "fetching", "unpacking", "ready",
        ]  # fmt: skip

        following = engine.keeper(is_offline=True)
        assert following.is_there
        assert (following.state.phase, following.state.version) == ("ready", "2.13.0")

    asyncio.run(install())


def test_an_engine_of_another_release_stays_until_a_person_asks_for_the_new_one(
    engine: KeptEngine, tmp_path: Path
) -> None:
    newer = zip_wheel(tmp_path / "torch-2.13.1-py3-none-any.whl", TORCH, version="2.13.1")
    engine.publish(newer)

    async def install() -> None:
        await engine.installed()

        second = engine.keeper([newer])
        await second.look()
        assert second.state.phase == "ready"
        assert "another one" in second.state.message
        await second.change(INSTALL)
        await done(second)
        assert second.state.version == "2.13.1"
        assert "next time" in second.state.message
        assert second.does_not_work()  # the one before is there still
        assert engine.keeper(is_offline=True).state.version == "2.13.0"

    asyncio.run(install())


def test_a_disk_without_room_for_what_is_unpacked_is_said_first(engine: KeptEngine) -> None:
    async def install() -> None:
        its = engine.keeper()
        await its.look()
        engine.store.disk_free = lambda _: 2 * its.state.nbytes
        await its.change(INSTALL)
        await done(its)
        assert its.state.phase == "failed"
        assert "The engine needs" in its.state.message
        assert engine.internet.asked == []

    asyncio.run(install())


def test_an_error_that_nobody_expects_is_a_state_and_not_for_ever_a_download(
    engine: KeptEngine,
) -> None:
    async def install() -> None:
        its = engine.keeper()
        await its.look()

        def no_disk(_: Path) -> int:
            raise LookupError("nobody expects this")

        engine.store.disk_free = no_disk
        await its.change(INSTALL)
        await done(its)
        assert its.state.phase == "failed"
        assert its.state.failed
        assert "potluck logs" in its.state.message

    asyncio.run(install())


def test_an_own_torch_needs_nothing(engine: KeptEngine) -> None:
    async def look() -> None:
        its = engine.keeper(is_offline=True, has_torch=True)
        await its.look()
        assert (await its.change(INSTALL)).phase == "own"

        assert its.is_there
        assert its.folder() is None
        assert engine.store.nbytes == 0

    asyncio.run(look())


def test_without_a_source_the_state_says_what_helps_and_it_can_be_tried_again(
    engine: KeptEngine,
) -> None:
    async def install() -> None:
        its = engine.keeper(is_offline=True)
        await its.look()
        await its.change(INSTALL)
        await done(its)
        assert its.state.phase == "failed"
        assert "No computer of your home" in its.state.message

        its._fetcher._internet = Internet(engine.store, index=engine.index)
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)

    asyncio.run(install())


def test_an_engine_that_does_not_work_is_a_state(engine: KeptEngine, tmp_path: Path) -> None:
    broken = zip_wheel(
        tmp_path / "torch-2.13.0-py3-none-any.whl", {"torch/__init__.py": b"import no_such_thing"}
    )

    engine.publish(broken)

    async def install() -> None:
        its = engine.keeper([broken])
        await its.look()
        await its.change(INSTALL)
        await done(its)

        assert its.state.phase == "failed"
        assert "does not work" in its.state.message
        assert its.folder() is None

    asyncio.run(install())


def test_wheels_of_the_owner_are_installed_and_kept_for_others_if_they_are_listed(
    engine: KeptEngine,
) -> None:
    async def install() -> None:
        its = engine.keeper(is_offline=True)
        await its.look()
        await its.change(EngineRequest(action="install", folder=str(engine.paths[0].parent)))
        await asyncio.sleep(0)
        assert (
            its.state.is_working
        )  # while the wheels are read: who follows it must not take it for over
        await asyncio.wait_for(its.wait(), 60)

        assert its.state.variant == "own"
        assert engine.store.has(next(iter(its.listed())))
        with pytest.raises(UsageError, match="cannot fetch this engine again"):
            await its.change(REPAIR)
        await its.change(EngineRequest(action="remove"))
        assert its.state.variant == "cpu"

    asyncio.run(install())


def test_a_folder_without_torch_is_named(engine: KeptEngine, tmp_path: Path) -> None:
    async def install() -> None:
        its = engine.keeper(is_offline=True)
        await its.look()
        await its.change(EngineRequest(action="install", folder=str(tmp_path)))
        await done(its)
        assert its.state.phase == "failed"
        assert f"{tmp_path} has no wheel of torch" in its.state.message
        with pytest.raises(UsageError, match="whole path"):
            await its.change(EngineRequest(action="install", folder="here"))

    asyncio.run(install())


def test_a_removed_engine_leaves_nothing(engine: KeptEngine) -> None:
    async def install() -> None:
        its = await engine.installed()

        state = await its.change(EngineRequest(action="remove"))

        assert state.phase == "missing"
        assert not its.is_there
        assert engine.store.nbytes == 0
        assert not list(engine.store.root.parent.glob("[0-9a-f]*"))

    asyncio.run(install())


def test_a_release_without_an_engine_for_this_computer_says_so(engine: KeptEngine) -> None:
    async def look() -> None:
        its = engine.keeper(is_offline=True)
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


def test_what_two_computers_ask_for_is_fetched_side_by_side(engine: KeptEngine) -> None:
    async def fetch() -> None:
        its = engine.keeper()
        await its.look()
        torch, sympy = map(wheel_of, engine.paths)

        assert its.fetch_for_others([torch]) == ""
        assert its.fetch_for_others([torch]) == ""  # it comes already
        assert its.fetch_for_others([torch, sympy]) == ""
        assert its.is_busy
        assert len(its._for_others) == 2

        async with asyncio.timeout(60):
            await asyncio.wait(list(its._tasks._tasks))
        assert engine.store.has(torch.digest, torch.nbytes)
        assert engine.store.has(sympy.digest, sympy.nbytes)
        assert not its.is_busy

    asyncio.run(fetch())


def test_files_that_no_release_lists_any_more_are_deleted(
    engine: KeptEngine, tmp_path: Path
) -> None:
    old = zip_wheel(tmp_path / "old.whl", {"a": b"old"})

    async def look() -> None:
        its = engine.keeper(is_offline=True)
        kept = wheel_of(engine.paths[0])
        engine.store.write(kept.digest, 0, kept.nbytes, engine.paths[0].read_bytes())

        digest = Digest(hashlib.sha256(old.read_bytes()).hexdigest())
        engine.store.write(digest, 0, old.stat().st_size, old.read_bytes())
        await its.look()
        await its.clean()

        assert engine.store.has(kept.digest)
        assert not engine.store.has(digest)

    asyncio.run(look())
