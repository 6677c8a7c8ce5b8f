"""An engine whose files were altered is fetched and unpacked anew; until then it is used as it is."""

import asyncio

import pytest
from kept_engine import REPAIR, KeptEngine, done

from potluck.runtime.download import Internet

pytestmark = pytest.mark.net


def test_a_repair_fetches_what_the_disk_has_altered_and_replaces_the_engine(
    engine: KeptEngine,
) -> None:
    async def repair() -> None:
        its = await engine.installed()
        before = its.folder()
        wheel = next(iter(its.listed().values()))
        engine.store.path(wheel.digest).write_bytes(bytes(wheel.nbytes))
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


def test_a_repair_without_a_source_leaves_the_engine_as_it_is(engine: KeptEngine) -> None:
    async def repair() -> None:
        its = await engine.installed()
        before = its.folder()
        for digest in its.listed():
            engine.store.discard(digest)
        its._fetcher._internet = Internet(engine.store, index=None)

        await its.change(REPAIR)
        await done(its)

        assert (its.state.phase, its.state.failed) == ("ready", True)
        assert "No computer of your home" in its.state.message
        assert its.is_there
        assert its.folder() == before

    asyncio.run(repair())
