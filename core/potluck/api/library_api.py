"""The operations of `/cluster` for models that are on this computer, or can be downloaded."""

from collections.abc import Awaitable, Sequence

from potluck.api.http.endpoint import RequestError
from potluck.api.http.operations import Operation
from potluck.api.library import Library
from potluck.api.values import hub
from potluck.api.values.schema import ModelEntry

_MAX_WORDS = 200  # characters of a search


def library_operations(library: Library) -> Sequence[Operation]:
    """All that can be asked of models."""
    return [*_here(library), *_hub(library)]


def _here(library: Library) -> Sequence[Operation]:
    return [
        Operation(
            method="GET",
            path="/cluster/models",
            does="The models on this computer, each with how it fits.",
            run=lambda _, __: library.models(),
            gives=tuple[ModelEntry, ...],
        ),
        Operation(
            method="POST",
            path="/cluster/models/delete",
            does="Delete a downloaded model.",
            run=lambda asked, _: library.delete(asked),
            takes=hub.DeleteRequest,
            gives=hub.Deleted,
        ),
        Operation(
            method="POST",
            path="/cluster/models/folders",
            does="Search a folder for models from now on.",
            run=lambda asked, _: library.add_folder(asked),
            takes=hub.FolderRequest,
            gives=hub.Found,
        ),
        Operation(
            method="POST",
            path="/cluster/downloads",
            does="Begin a download.",
            run=lambda asked, _: library.download(asked),
            takes=hub.DownloadRequest,
            gives=hub.Download,
        ),
        Operation(
            method="POST",
            path="/cluster/downloads/{download_id}",
            does="Pause, resume or cancel a download.",
            run=lambda asked, at: library.change_download(at["download_id"], asked.action),
            takes=hub.DownloadChange,
            gives=hub.Download,
        ),
    ]


def _hub(library: Library) -> Sequence[Operation]:
    def search(words: str) -> Awaitable[hub.HubAnswer]:
        if not 0 < len(words) <= _MAX_WORDS:
            raise RequestError(400, f"query: 1 to {_MAX_WORDS} characters.", param="query")
        return library.search(words)

    return [
        Operation(
            method="GET",
            path="/cluster/hub/recommended",
            does="The models that Potluck recommends, with how they fit. Nobody is asked.",
            run=lambda _, __: library.recommended(),
            gives=hub.HubAnswer,
        ),
        Operation(
            method="GET",
            path="/cluster/hub/search",
            does="Models of the Hub by words of their names.",
            run=lambda _, at: search(at["query"].strip()),
            gives=hub.HubAnswer,
            query={"query": f"1 to {_MAX_WORDS} characters."},
        ),
        Operation(
            method="GET",
            path="/cluster/hub/models/{org}/{name}",
            does="One model of the Hub, with how each of its variants fits.",
            run=lambda _, at: library.look("{org}/{name}".format(**at)),
            gives=hub.HubModel,
        ),
        Operation(
            method="GET",
            path="/cluster/hub/token",
            does="Who the user is at the Hub.",
            run=lambda _, __: library.token(),
            gives=hub.HubUser,
        ),
        Operation(
            method="PUT",
            path="/cluster/hub/token",
            does="Keep a token for the Hub; an empty one is forgotten.",
            run=lambda asked, _: library.set_token(asked.token),
            takes=hub.HubToken,
            gives=hub.HubUser,
        ),
    ]
