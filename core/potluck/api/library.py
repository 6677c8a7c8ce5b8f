"""The models of this computer and of the Hub, as the HTTP server sees them. See `potluck.api.backend`."""

from collections.abc import Sequence
from typing import Protocol

from potluck.api.values.hub import (
    Deleted,
    DeleteRequest,
    Download,
    DownloadAction,
    DownloadRequest,
    FolderRequest,
    Found,
    HubAnswer,
    HubModel,
    HubUser,
)
from potluck.api.values.schema import ModelEntry


class Library(Protocol):
    """What a node knows of models. Every method may raise a `PotluckError`."""

    async def models(self) -> Sequence[ModelEntry]:
        """The models on this computer, each with how it fits."""
        ...

    async def recommended(self) -> HubAnswer:
        """The models that Potluck recommends, with how they fit. Nobody is asked."""
        ...

    async def search(self, words: str) -> HubAnswer:
        """Models of the Hub by words of their names."""
        ...

    async def look(self, name: str) -> HubModel:
        """The details of one model of the Hub, with how each of its variants fits."""
        ...

    async def download(self, request: DownloadRequest) -> Download: ...

    async def change_download(self, download_id: str, action: DownloadAction) -> Download: ...

    async def set_token(self, token: str) -> HubUser:
        """Check and keep the user's token for the Hub; an empty one is forgotten."""
        ...

    async def token(self) -> HubUser: ...

    async def delete(self, request: DeleteRequest) -> Deleted:
        """Delete a model that was downloaded from the Hub, if it is not loaded."""
        ...

    async def add_folder(self, request: FolderRequest) -> Found:
        """Search this folder for models from now on."""
        ...
