"""The endpoints of `/cluster` for models that are on this computer, or can be downloaded."""

from starlette.requests import Request
from starlette.responses import Response

from potluck.api import hub
from potluck.api.endpoint import Handler, JsonResponse, RequestError, read
from potluck.api.library import Library

_MAX_WORDS = 200  # characters of a search


class LibraryApi:
    """Answers for the models."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def handlers(self) -> list[tuple[str, str, Handler]]:
        """Method, path and handler of each endpoint."""
        return [
            ("GET", "/cluster/models", self._models),
            ("POST", "/cluster/models/delete", self._delete),
            ("POST", "/cluster/models/folders", self._add_folder),
            ("GET", "/cluster/hub/recommended", self._recommended),
            ("GET", "/cluster/hub/search", self._search),
            ("GET", "/cluster/hub/models/{org}/{name}", self._look),
            ("GET", "/cluster/hub/token", self._token),
            ("PUT", "/cluster/hub/token", self._set_token),
            ("POST", "/cluster/downloads", self._download),
            ("POST", "/cluster/downloads/{id}", self._change_download),
        ]

    async def _models(self, request: Request) -> Response:
        return JsonResponse(await self._library.models())

    async def _delete(self, request: Request) -> Response:
        return JsonResponse(await self._library.delete(await read(request, hub.DeleteRequest)))

    async def _add_folder(self, request: Request) -> Response:
        return JsonResponse(await self._library.add_folder(await read(request, hub.FolderRequest)))

    async def _recommended(self, request: Request) -> Response:
        return JsonResponse(await self._library.recommended())

    async def _search(self, request: Request) -> Response:
        words = request.query_params.get("query", "").strip()
        if not 0 < len(words) <= _MAX_WORDS:
            raise RequestError(400, f"query: 1 to {_MAX_WORDS} characters.", param="query")
        return JsonResponse(await self._library.search(words))

    async def _look(self, request: Request) -> Response:
        name = "{org}/{name}".format(**request.path_params)
        return JsonResponse(await self._library.look(name))

    async def _token(self, request: Request) -> Response:
        return JsonResponse(await self._library.token())

    async def _set_token(self, request: Request) -> Response:
        asked = await read(request, hub.HubToken)
        return JsonResponse(await self._library.set_token(asked.token))

    async def _download(self, request: Request) -> Response:
        return JsonResponse(await self._library.download(await read(request, hub.DownloadRequest)))

    async def _change_download(self, request: Request) -> Response:
        change = await read(request, hub.DownloadChange)
        changed = await self._library.change_download(request.path_params["id"], change.action)
        return JsonResponse(changed)
