"""The models of a node's user: lists with fits, details of the Hub, deleting. The Hub is one on loopback."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_cluster import FakeComputer, FakeComputers, within
from hub_stand_in import COMMIT, HubStandIn, Repo, serving_hub
from model_folders import CONFIG, make_folder

from potluck.api.values.hub import DeleteRequest, DownloadRequest, Fit, FolderRequest, Speed
from potluck.api.values.schema import PlanRequest
from potluck.cluster.chosen import Chosen
from potluck.cluster.library import NodeLibrary, best_variant
from potluck.cluster.master.fits import Fits
from potluck.cluster.master.master import Master
from potluck.cluster.master.measurements import Measurements
from potluck.errors import GatedModelError, NotFoundError, UsageError
from potluck.hub.downloads import Downloads
from potluck.hub.found import KnownModels, Places, RecentFolders
from potluck.hub.remote import Hub
from potluck.hub.token import TokenFile
from potluck.store.registry import open_model

pytestmark = pytest.mark.net


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving_hub() as hub:
        yield hub


class Shelf:
    """A library over folders of a test. `loaded` is the folder of the model that is loaded."""

    def __init__(self, folder: Path, endpoint: str = "http://127.0.0.1:9") -> None:
        self.cache = folder / "hub"
        self.guide = make_folder(folder / "guide")
        self.recent = RecentFolders(folder / "recent.json")
        self.known = KnownModels(self.guide, self.recent, Places(hub=self.cache))
        self.chosen = Chosen(folder / "chosen.json", self.guide)
        self.token = TokenFile(folder / "token")
        self.loaded: Path | None = None
        self.changed = asyncio.Event()
        self.is_at_rest = True  # as a master says
        asked = Hub(self.token.read, endpoint)
        computers = FakeComputers(FakeComputer("Desk", 1, memory=8 * 10**9))
        self.library = NodeLibrary(
            hub=asked,
            downloads=Downloads(
                hub=asked,
                cache=self.cache,
                file=folder / "downloads.json",
                start=cast("Any", None),  # nothing is run here
                token=self.token.read,
                changed=lambda: None,
                endpoint=endpoint,
            ),
            token=self.token,
            fits=Fits(computers, Measurements()),
            master=cast("Master", self),
            chosen=self.chosen,
            known=self.known,
            cache=self.cache,
            changed=self.changed.set,
        )

    @property
    def deployment(self) -> object:
        """As a master has it."""
        if self.loaded is None:
            return None
        model = SimpleNamespace(folder=self.loaded)
        return SimpleNamespace(planned=SimpleNamespace(model=model), tasks=())

    def cached(self, name: str, *, files: tuple[str, ...] = ()) -> Path:
        """A model in the Hugging Face cache, or GGUF files of it, as that cache has them."""
        repository = self.cache / f"models--{name.replace('/', '--')}"
        snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        blobs.mkdir()
        if not files:
            make_folder(snapshot)
        for number, file in enumerate(files):
            snapshot.mkdir(parents=True, exist_ok=True)
            (blobs / str(number)).write_bytes(bytes(1000))
            (snapshot / file).symlink_to(blobs / str(number))
        return snapshot


def test_models_are_listed_with_what_they_are_and_how_they_fit(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        snapshot = shelf.cached("anna/tiny")
        model = open_model(snapshot, cache_dir=tmp_path / "digests")
        shelf.chosen.note(PlanRequest(model="anna/tiny"), model)
        shelf.loaded = shelf.guide

        guide, tiny = await shelf.library.models()

        assert (guide.source, guide.current, guide.can_be_deleted) == ("potluck", True, False)
        assert (tiny.source, tiny.chosen, tiny.can_be_deleted) == ("hub", True, True)
        assert (tiny.format, tiny.parameters) == ("safetensors", 19_616)
        assert tiny.fit is not None
        assert tiny.fit.text == "Fits on this computer."

    asyncio.run(within(30, main()))


def test_broken_model_is_listed_with_its_problem(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        odd = make_folder(tmp_path / "odd")
        config = {**CONFIG, "architectures": ["Odd"]}
        (odd / "config.json").write_text(json.dumps(config))
        shelf.recent.add(odd)

        _, entry = await shelf.library.models()

        assert entry.problem is not None
        assert "architecture Odd" in entry.problem

    asyncio.run(within(30, main()))


def test_only_downloaded_models_that_are_not_loaded_are_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        delete = shelf.library.delete
        snapshot = shelf.cached("anna/tiny")
        shelf.loaded = snapshot
        with pytest.raises(UsageError, match=r"anna/tiny is loaded\. Unload it"):
            await delete(DeleteRequest(model="anna/tiny"))
        with pytest.raises(UsageError, match="comes with Potluck"):
            await delete(DeleteRequest(model="guide"))
        with pytest.raises(NotFoundError):
            await delete(DeleteRequest(model="none"))
        shelf.recent.add(make_folder(tmp_path / "mine"))
        with pytest.raises(UsageError, match="in a folder of yours"):
            await delete(DeleteRequest(model="mine"))
        shelf.loaded = None

        deleted = await delete(DeleteRequest(model=str(snapshot)))

        assert deleted.name == "anna/tiny"
        assert not snapshot.exists()

    asyncio.run(within(30, main()))


def test_one_of_two_quantisations_is_deleted_alone(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        snapshot = shelf.cached("anna/tiny-GGUF", files=("t-Q4_0.gguf", "t-Q8_0.gguf"))

        deleted = await shelf.library.delete(DeleteRequest(model="anna/tiny-GGUF/t-Q4_0"))

        assert deleted.nbytes == 1000
        assert [path.name for path in snapshot.iterdir()] == ["t-Q8_0.gguf"]
        assert len(list(snapshot.parents[1].joinpath("blobs").iterdir())) == 1

    asyncio.run(within(30, main()))


def test_file_outside_of_the_cache_stays_where_a_link_leads_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        snapshot = shelf.cached("anna/tiny-GGUF", files=("t-Q4_0.gguf", "t-Q8_0.gguf"))
        mine = tmp_path / "mine.gguf"
        mine.write_bytes(bytes(1000))
        link = snapshot / "t-Q4_0.gguf"
        link.unlink()
        link.symlink_to(mine)

        deleted = await shelf.library.delete(DeleteRequest(model=str(link)))

        assert (deleted.nbytes, link.is_symlink(), mine.exists()) == (0, False, True)

    asyncio.run(within(30, main()))


def test_folder_of_models_is_searched_from_then_on(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        make_folder(tmp_path / "models" / "mine")
        (tmp_path / "empty").mkdir()

        found = await shelf.library.add_folder(FolderRequest(path=str(tmp_path / "models")))

        assert found.models == ("mine",)
        assert [model.name for model in shelf.known.list()] == ["guide", "mine"]
        for path, words in ((tmp_path / "empty", "has no models"), (tmp_path / "no", "no folder")):
            with pytest.raises(UsageError, match=words):
                await shelf.library.add_folder(FolderRequest(path=str(path)))

    asyncio.run(within(30, main()))


def test_recommended_models_say_which_of_them_fit_here(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        answer = await shelf.library.recommended()

        fits = [model.fit for model in answer.models if model.fit is not None]
        assert len(fits) == len(answer.models)
        assert fits[0].fits
        assert fits[0].speed is None
        assert fits[-1].fits is False

        assert answer.measuring
        await asyncio.wait_for(shelf.changed.wait(), 10)
        answer = await shelf.library.recommended()
        assert not answer.measuring
        assert answer.models[0].fit is not None
        assert "tokens/s on this computer." in answer.models[0].fit.text
        usable = [m for m in answer.models if m.fit and m.fit.speed and m.fit.speed.low >= 4]
        assert list(answer.models[: len(usable)]) == usable
        sizes = [model.parameters or 0 for model in usable]
        assert sizes == sorted(sizes, reverse=True)  # the best that is fast enough comes first

    asyncio.run(within(30, main()))


def test_nothing_is_measured_while_a_model_loads_or_answers(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        shelf.is_at_rest = False
        assert not (await shelf.library.recommended()).measuring
        shelf.is_at_rest = True
        assert (await shelf.library.recommended()).measuring
        await asyncio.wait_for(shelf.changed.wait(), 10)

    asyncio.run(within(30, main()))


def test_hub_that_cannot_be_reached_is_said_by_a_search(tmp_path: Path) -> None:
    async def main() -> None:
        answer = await Shelf(tmp_path).library.search("tiny")

        assert answer.offline
        assert answer.message is not None

    asyncio.run(within(30, main()))


def test_details_say_how_each_variant_fits_and_which_is_here(
    tmp_path: Path, hub: HubStandIn
) -> None:
    folder = make_folder(tmp_path / "repo")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.add(Repo("anna/tiny", files | {"tiny-Q8_0.gguf": bytes(9)}))

    async def main() -> None:
        shelf = Shelf(tmp_path / "node", hub.address)
        snapshot = shelf.cached("anna/tiny")

        model = await shelf.library.look("anna/tiny")

        assert [(v.name, v.path) for v in model.variants] == [
            ("safetensors", str(snapshot)),
            ("Q8_0", None),
        ]
        assert all(v.fit is not None and v.fit.fits for v in model.variants)
        there = await shelf.library.download(
            DownloadRequest(model="anna/tiny", variant="safetensors")
        )
        assert there.state == "done"

    asyncio.run(within(30, main()))


def test_token_is_checked_before_it_is_kept(tmp_path: Path, hub: HubStandIn) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path, hub.address)
        with pytest.raises(GatedModelError):
            await shelf.library.set_token("hf_wrong")
        assert not (tmp_path / "token").exists()

        user = await shelf.library.set_token("hf_the-right-one")

        assert (user.has_token, user.name) == (True, "anna")
        assert (tmp_path / "token").stat().st_mode & 0o077 == 0
        assert not (await shelf.library.set_token("")).has_token
        assert not (tmp_path / "token").exists()

    asyncio.run(within(30, main()))


def fit(tokens_per_s: float | None, *, fits: bool = True) -> Fit:
    speed = None if tokens_per_s is None else Speed(low=tokens_per_s, high=tokens_per_s)
    return Fit(fits=fits, speed=speed)


Variants = list[tuple[str, Fit | None]]


@pytest.mark.parametrize(
    ("variants", "best"),
    [
        ([("Q8_0", fit(9.0)), ("Q4_K_M", fit(15.0))], "Q8_0"),
        ([("Q8_0", fit(2.0)), ("Q4_K_M", fit(5.0))], "Q4_K_M"),
        ([("Q8_0", fit(1.0)), ("Q4_0", fit(2.0))], "Q4_0"),
        ([("Q8_0", fit(None)), ("Q4_K_M", fit(None)), ("Q2_K", fit(None))], "Q4_K_M"),
        ([("Q8_0", fit(None, fits=False)), ("Q2_K", fit(None, fits=False))], "Q2_K"),
        ([("Q8_0", None)], "Q8_0"),
        ([], None),
    ],
)
def test_best_variant_is_the_best_quality_that_is_usable(
    variants: Variants, best: str | None
) -> None:
    assert best_variant(variants) == best
