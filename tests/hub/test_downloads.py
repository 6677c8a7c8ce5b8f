"""Downloads into a Hugging Face cache, by real processes, from a Hub on loopback."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import COMMIT, TOKEN, HubStandIn, Repo, unsupported

from potluck.api.values.hub import Download
from potluck.cluster.processes.start import start_process
from potluck.errors import (
    DiskFullError,
    GatedModelError,
    NotFoundError,
    OfflineError,
    UnknownArchitectureError,
)
from potluck.hub.downloads import ENVIRONMENT, MODULE, Downloads
from potluck.hub.found import Places, list_models
from potluck.hub.remote import Hub

pytestmark = pytest.mark.net

LARGE = 300_000  # bytes of the weights
SHA256 = 64  # digits; small files have the 40 of git


class Bench:
    """A cache, and nodes that download into it one after the other."""

    def __init__(self, hub: HubStandIn, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.cache = folder / "hub"
        self.token: str | None = None
        self.endpoint = hub.address

    @asynccontextmanager
    async def node(self, **more: Any) -> AsyncIterator[Downloads]:
        self.changed = asyncio.Event()
        downloads = Downloads(
            hub=Hub(lambda: self.token, self.endpoint),
            cache=self.cache,
            file=self.folder / "downloads.json",
            start=lambda: start_process(MODULE, self.folder / "log", ENVIRONMENT),
            token=lambda: self.token,
            changed=self.changed.set,
            endpoint=self.endpoint,
            **more,
        )
        running = asyncio.create_task(downloads.run())
        try:
            yield downloads
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def until(self, downloads: Downloads, is_so: Callable[[Download], bool]) -> Download:
        async with asyncio.timeout(30):
            while True:
                self.changed.clear()
                for view in downloads.views():
                    if is_so(view):
                        return view
                await self.changed.wait()

    def weights(self) -> bytes | None:
        path = self.cache / "models--anna--tiny" / "snapshots" / COMMIT / "model.safetensors"
        return path.read_bytes() if path.exists() else None

    def parts(self) -> list[Path]:
        """What there is of weights that are not whole."""
        return [path for path in self.cache.rglob("*.incomplete") if len(path.name) > SHA256]


@pytest.fixture
def bench(hub: HubStandIn, tiny: Repo, tmp_path: Path) -> Bench:
    tiny.files["model.safetensors"] = bytes(range(256)) * (LARGE // 256)
    return Bench(hub, tmp_path)


def first(variants: object) -> None:
    return None


def is_in(state: str) -> Callable[[Download], bool]:
    return lambda view: view.state == state


async def held_at(bench: Bench, downloads: Downloads) -> Download:
    """Begin a download, and wait until some of its weights are there."""
    bench.hub.held.clear()
    bench.hub.hold_after = LARGE // 2
    view = await downloads.add("anna/tiny", first)
    async with asyncio.timeout(30):
        await asyncio.to_thread(bench.hub.reached.wait, 30)
        while not (bench.parts() and bench.parts()[0].stat().st_size):  # noqa: ASYNC110, files tell nobody
            await asyncio.sleep(0.01)
    return view


def test_model_is_where_other_programs_look_for_it(bench: Bench):
    async def main() -> Download:
        async with bench.node() as downloads:
            await downloads.add("anna/tiny", first)
            return await bench.until(downloads, is_in("done"))

    view = asyncio.run(main())

    assert view.done == view.total
    assert bench.weights() == bench.hub.repos["anna/tiny"].files["model.safetensors"]
    (model,) = list_models(places=Places(hub=bench.cache))
    assert (model.name, str(model.path)) == ("anna/tiny", view.path)
    assert (bench.cache / "models--anna--tiny" / "refs" / "main").read_text() == COMMIT
    names = {path.name for path in model.path.iterdir()}
    assert not names & {"pytorch_model.bin", "README.md", "onnx"}


def test_paused_download_goes_on_after_a_restart_where_it_was(bench: Bench):
    async def main() -> None:
        async with bench.node() as downloads:
            view = await held_at(bench, downloads)
            paused = await downloads.change(view.id, "pause")
            assert (paused.state, bench.weights()) == ("paused", None)
            assert 0 < downloads.views()[0].done < paused.total
        there = bench.parts()[0].stat().st_size
        bench.hub.held.set()
        async with bench.node() as downloads:
            assert downloads.views()[0].state == "paused"
            await downloads.change(view.id, "resume")
            await bench.until(downloads, is_in("done"))
        assert bench.hub.ranges[-1] == f"bytes={there}-"

    asyncio.run(main())

    assert bench.weights() == bench.hub.repos["anna/tiny"].files["model.safetensors"]
    assert bench.parts() == []


def test_download_under_way_goes_on_by_itself_after_a_restart(bench: Bench):
    async def main() -> None:
        async with bench.node() as downloads:
            await held_at(bench, downloads)
        bench.hub.held.set()
        async with bench.node() as downloads:
            await bench.until(downloads, is_in("done"))

    asyncio.run(main())

    assert bench.hub.ranges[-1] is not None


def test_cancelled_download_leaves_nothing(bench: Bench):
    async def main() -> None:
        async with bench.node() as downloads:
            view = await held_at(bench, downloads)
            await downloads.change(view.id, "cancel")
            assert downloads.views() == ()
            with pytest.raises(NotFoundError):
                await downloads.change(view.id, "resume")

    asyncio.run(main())

    assert list(bench.cache.rglob("*model.safetensors*")) == bench.parts() == []


@pytest.mark.slow
def test_connection_that_breaks_in_the_middle_is_made_again(bench: Bench):
    bench.hub.cut_after = [LARGE // 2]

    async def main() -> None:
        async with bench.node() as downloads:
            await downloads.add("anna/tiny", first)
            await bench.until(downloads, is_in("done"))

    asyncio.run(main())

    assert bench.weights() == bench.hub.repos["anna/tiny"].files["model.safetensors"]
    assert bench.hub.ranges[0] is None
    assert bench.hub.ranges[1] is not None


def test_second_download_waits_for_the_first(bench: Bench, quantised: Repo):
    async def main() -> None:
        async with bench.node() as downloads:
            await held_at(bench, downloads)
            second = await downloads.add("anna/tiny-GGUF", lambda _: "q4_k_m")
            assert second.state == "queued"
            assert [view.state for view in downloads.views()] == ["running", "queued"]
            bench.hub.held.set()
            done = await bench.until(downloads, lambda v: v.id == second.id and v.state == "done")
            assert done.path is not None
            assert done.path.endswith("tiny-Q4_K_M.gguf")

    asyncio.run(main())


def test_queue_says_its_order_and_keeps_it_over_a_restart(
    bench: Bench, quantised: Repo, tiny: Repo
):
    async def main() -> None:
        async with bench.node() as downloads:
            await held_at(bench, downloads)
            for name in ("q8_0", "q4_k_m"):
                await downloads.add("anna/tiny-GGUF", lambda _, n=name: n)
            assert [view.place for view in downloads.views()] == [None, 1, 2]
            before = [view.variant for view in downloads.views()]
        async with bench.node() as downloads:
            assert [view.variant for view in downloads.views()] == before
            bench.hub.held.set()
            await bench.until(downloads, lambda v: v.variant == before[2] and v.state == "done")
            assert [view.place for view in downloads.views()] == [None, None, None]

    asyncio.run(main())


def test_limit_holds_for_who_downloads_and_another_one_at_once(bench: Bench):
    async def main() -> None:
        async with bench.node() as downloads:
            downloads.limit(1e-6)  # MB/s: a second for each byte
            await downloads.add("anna/tiny", first)
            began = await bench.until(downloads, lambda v: v.state == "running" and v.done > 0)
            assert began.done < began.total
            downloads.limit(None)
            await bench.until(downloads, is_in("done"))

    asyncio.run(main())


def test_wrong_bytes_are_deleted_and_said(bench: Bench):
    bench.hub.wrong = True

    async def main() -> Download:
        async with bench.node() as downloads:
            await downloads.add("anna/tiny", first)
            return await bench.until(downloads, is_in("failed"))

    view = asyncio.run(main())

    assert view.message is not None
    assert "other bytes than the Hub promised" in view.message
    assert (bench.weights(), bench.parts()) == (None, [])


@pytest.mark.slow
def test_hub_that_is_gone_is_a_state_that_ends_by_itself(bench: Bench):
    async def main() -> None:
        async with bench.node() as downloads:
            view = await held_at(bench, downloads)
            await downloads.change(view.id, "pause")
        address, bench.endpoint = bench.endpoint, "http://127.0.0.1:9"
        bench.hub.held.set()
        async with bench.node(retry_s=0.05) as downloads:
            await downloads.change(view.id, "resume")
            offline = await bench.until(downloads, is_in("offline"))
            assert offline.message is not None
            assert "cannot be reached" in offline.message
            with pytest.raises(OfflineError):
                await downloads.add("anna/other", first)
            downloads._endpoint = address  # it is back
            await bench.until(downloads, is_in("done"))

    asyncio.run(main())


def test_disk_without_room_is_said_with_what_is_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    usage = shutil.disk_usage("/")._replace(free=1 << 30)
    monkeypatch.setattr("potluck.hub.kept.shutil.disk_usage", lambda path: usage)

    async def main() -> None:
        async with bench.node() as downloads:
            with pytest.raises(DiskFullError, match=r"30\d(\.\d)? kB are missing"):
                await downloads.add("anna/tiny", first)
            assert downloads.views() == ()

    asyncio.run(main())


def test_what_could_not_be_run_or_had_is_refused_before_a_download(bench: Bench, tiny: Repo):
    bench.hub.add(unsupported())

    async def main() -> None:
        async with bench.node() as downloads:
            with pytest.raises(UnknownArchitectureError):
                await downloads.add("anna/snake", first)
            with pytest.raises(NotFoundError, match=r"no variant Q1\. It has: safetensors"):
                await downloads.add("anna/tiny", lambda _: "Q1")
            tiny.gated = True
            with pytest.raises(GatedModelError):
                await downloads.add("anna/tiny", first)
            bench.token = TOKEN
            await downloads.add("anna/tiny", first)
            await bench.until(downloads, is_in("done"))

    asyncio.run(main())

    assert TOKEN in bench.hub.tokens
    assert bench.hub.told_elsewhere == [None]  # another host has the weights


@pytest.mark.parametrize("nbytes", [10, 5_000_000])
def test_small_file_is_bounded_and_checked_as_well(bench: Bench, nbytes: int):
    bench.hub.sent["tokenizer.json"] = bytes(nbytes)

    async def main() -> Download:
        async with bench.node() as downloads:
            await downloads.add("anna/tiny", first)
            return await bench.until(downloads, is_in("failed"))

    view = asyncio.run(main())

    assert view.message is not None
    assert "tokenizer.json" in view.message
    on_disk = [path.stat().st_size for path in bench.cache.rglob("*") if path.is_file()]
    assert sum(on_disk) < 5000


def test_cancelling_leaves_what_another_revision_has(bench: Bench, tiny: Repo):
    async def main() -> None:
        async with bench.node() as downloads:
            await downloads.add("anna/tiny", first)
            before = await bench.until(downloads, is_in("done"))
            await downloads.change(before.id, "cancel")  # out of the list
            tiny.info["sha"] = "f" * 40
            tiny.files["model.safetensors"] = bytes(LARGE)
            await downloads.change((await held_at(bench, downloads)).id, "cancel")

    asyncio.run(main())

    (model,) = list_models(places=Places(hub=bench.cache))
    assert model.path.name == COMMIT
    assert (model.path / "config.json").read_bytes() == tiny.files["config.json"]


def test_model_that_is_there_already_is_not_fetched_again(bench: Bench):
    async def main() -> None:
        async with bench.node() as downloads:
            await downloads.add("anna/tiny", first)
            await bench.until(downloads, is_in("done"))
            assert (await downloads.add("anna/tiny", first)).state == "done"

    asyncio.run(main())

    assert len(bench.hub.ranges) == 1
