"""The models of the fake node of `fake_backend`: a few, which tests may change."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from potluck.api.values import hub, schema
from potluck.errors import NotFoundError, PotluckError, UsageError

FIT = hub.Fit(
    fits=True,
    text="About 11 tokens/s on this computer. About 19 with Attic.",
    scheme="int4-offset",
    computers=("here",),
    speed=hub.Speed(low=11.0, high=11.0),
    alone=True,
)
TOO_BIG = hub.Fit(
    fits=False,
    text="Would fit with 8 GB more memory: add a computer.",
    needed=20 * 10**9,
    missing=8 * 10**9,
)


def model(name: str = "anna/tiny-GGUF", **changes: Any) -> hub.HubModel:
    values: dict[str, Any] = {
        "name": name,
        "page": f"https://huggingface.co/{name}",
        "about": "Small and quick.",
        "parameters": 8_200_000_000,
        "license": "apache-2.0",
        "downloads": 42,
        "variants": (
            hub.Variant(name="Q8_0", format="gguf", nbytes=8_000_000_000, fit=TOO_BIG),
            hub.Variant(name="Q4_K_M", format="gguf", nbytes=5_000_000_000, fit=FIT),
        ),
        "best": "Q4_K_M",
        "fit": FIT,
    }
    return hub.HubModel(**(values | changes))


class FakeLibrary:
    """Its public attributes are set by tests beforehand, or read by them afterwards.

    Args:
        update: changes the state of the node.
    """

    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update
        self.reset()

    def reset(self) -> None:
        """Go back to the initial attributes."""
        self.hub = [model()]
        self.offline = False
        self.error: PotluckError | None = None  # of a download
        self.steps = (400, 1000)  # bytes done, in the states of a download one after the other
        self.downloads: list[hub.DownloadRequest] = []
        self.changes: list[tuple[str, str]] = []
        self.tokens: list[str] = []
        self.measuring = 0  # how many answers come before the speeds are known
        self.deleted: list[str] = []
        self.folders: list[str] = []

    async def models(self) -> Sequence[schema.ModelEntry]:
        return [
            schema.ModelEntry(name="guide", path="/models/guide", nbytes=8_000_000, current=True),
            schema.ModelEntry(
                name="big", path="/models/big", nbytes=5_000_000_000, source="hub", fit=FIT
            ),
        ]

    async def recommended(self) -> hub.HubAnswer:
        is_measuring = self.measuring > 0
        self.measuring -= is_measuring
        return hub.HubAnswer(models=tuple(self.hub), measuring=is_measuring)

    async def search(self, words: str) -> hub.HubAnswer:
        if self.offline:
            return hub.HubAnswer(offline=True, message="The Hugging Face Hub cannot be reached.")
        return hub.HubAnswer(models=tuple(each for each in self.hub if words in each.name))

    async def look(self, name: str) -> hub.HubModel:
        found = next((each for each in self.hub if each.name == name), None)
        if found is None:
            raise NotFoundError(f"The Hub has no model {name}.")
        return found

    async def download(self, request: hub.DownloadRequest) -> hub.Download:
        if self.error is not None:
            raise self.error
        self.downloads.append(request)
        begun = hub.Download(
            id="d1",
            model=request.model,
            variant=request.variant or "Q4_K_M",
            state="running",
            done=self.steps[0],
            total=1000,
            bytes_per_s=1e6,
            eta_s=0.1,
        )
        last = msgspec.structs.replace(begun, done=self.steps[-1])
        if last.done == last.total:
            last = msgspec.structs.replace(last, state="done", path="/models/new")
        self._update(downloads=(last,))
        return begun

    async def change_download(self, download_id: str, action: hub.DownloadAction) -> hub.Download:
        self.changes.append((download_id, action))
        return hub.Download(
            id=download_id, model="a/b", variant="Q8_0", state="paused", done=1, total=2
        )

    async def set_token(self, token: str) -> hub.HubUser:
        self.tokens.append(token)
        return hub.HubUser(has_token=bool(token), name="anna" if token else None)

    async def token(self) -> hub.HubUser:
        return hub.HubUser(has_token=bool(self.tokens and self.tokens[-1]))

    async def delete(self, request: hub.DeleteRequest) -> hub.Deleted:
        if request.model == "guide":
            raise UsageError("guide is loaded. Unload it, or load another one, first.")
        self.deleted.append(request.model)
        return hub.Deleted(name=request.model, nbytes=5_000_000_000)

    async def add_folder(self, request: hub.FolderRequest) -> hub.Found:
        self.folders.append(request.path)
        return hub.Found(models=("one", "two"))
