"""A Hugging Face Hub on loopback: the endpoints that `huggingface_hub` uses, and what goes wrong with them."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

COMMIT = "c0ffee" * 6 + "c0ff"
TOKEN = "hf_the-right-one"
_PIECE = 1 << 14  # bytes sent at once


@dataclass
class Repo:
    """A repository. Files with weights are of LFS: they have a SHA-256, and lie at another address."""

    name: str
    files: dict[str, bytes]
    info: dict[str, Any] = field(default_factory=dict)  # more fields of its entry
    gated: bool = False

    def sibling(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        sibling: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _git_sha1(data)}
        if _is_lfs(name):
            sha256 = hashlib.sha256(data).hexdigest()
            sibling["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
        return sibling

    def entry(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "modelId": self.name,
            "sha": COMMIT,
            "gated": "auto" if self.gated else False,
            "private": False,
            "downloads": 42,
            "likes": 1,
            "pipeline_tag": "text-generation",
            "tags": ["text-generation", "license:apache-2.0"],
            "siblings": [self.sibling(name) for name in self.files],
        } | self.info


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _is_lfs(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".bin"))


class HubStandIn:
    """The Hub. Tests set what goes wrong, and read what was asked for."""

    def __init__(self) -> None:
        self.address = ""
        self.held = threading.Event()  # downloads of weights go on only while it is set
        self.reset()

    def reset(self) -> None:
        """Have nothing, and nothing go wrong."""
        self.held.set()
        self.repos: dict[str, Repo] = {}
        self.status: int | None = None  # of all answers, if not None
        self.cut_after: list[int] = []  # bytes after which the next downloads of weights break off
        self.hold_after = 0  # bytes that come while `held` is not set
        self.reached = threading.Event()  # a download waits there
        self.wrong = False  # whether weights come with wrong bytes
        self.sent: dict[str, bytes] = {}  # what comes in place of these small files
        self.answer: bytes | None = None  # what comes in place of entries
        self.ranges: list[str | None] = []  # of the downloads of weights
        self.tokens: list[str | None] = []
        self.told_elsewhere: list[str | None] = []  # "Authorization" on the host of the weights

    def add(self, repo: Repo) -> Repo:
        self.repos[repo.name] = repo
        return repo

    # --- endpoints

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/models", self._list),
                Route("/api/whoami-v2", self._whoami),
                Route("/api/models/{org}/{name}", self._info),
                Route("/api/models/{org}/{name}/revision/{revision}", self._info),
                Route("/{org}/{name}/resolve/{revision}/{file:path}", self._resolve),
                Route("/lfs/{org}/{name}/{file:path}", self._lfs),
            ]
        )

    def _refuse(self, request: Request, repo: Repo | None, *, files: bool) -> Response | None:
        token = (request.headers.get("authorization") or "").removeprefix("Bearer ") or None
        self.tokens.append(token)
        if self.status is not None:
            return JSONResponse({"error": "no"}, self.status)
        if token not in (None, TOKEN):
            return JSONResponse({"error": "Invalid token"}, 401)
        if repo is None:
            return _error("RepoNotFound", 401 if token is None else 404)
        if files and repo.gated and token is None:
            return _error("GatedRepo", 401)
        return None

    def _repo(self, request: Request) -> Repo | None:
        return self.repos.get("{org}/{name}".format(**request.path_params))

    async def _list(self, request: Request) -> Response:
        if self.status is not None:
            return JSONResponse({"error": "no"}, self.status)
        words = request.query_params.get("search", "").lower()
        found = [repo.entry() for repo in self.repos.values() if words in repo.name.lower()]
        return JSONResponse(found) if self.answer is None else Response(self.answer)

    async def _whoami(self, request: Request) -> Response:
        if self.status is not None or request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "Invalid credentials"}, self.status or 401)
        return JSONResponse({"type": "user", "name": "anna"})

    async def _info(self, request: Request) -> Response:
        repo = self._repo(request)
        refusal = self._refuse(request, repo, files=False)
        if refusal is not None or repo is None:
            return refusal or Response(status_code=404)
        return JSONResponse(repo.entry()) if self.answer is None else Response(self.answer)

    async def _resolve(self, request: Request) -> Response:
        repo, name = self._repo(request), request.path_params["file"]
        refusal = self._refuse(request, repo, files=True)
        if refusal is not None or repo is None:
            return refusal or Response(status_code=404)
        if name not in repo.files:
            return _error("EntryNotFound", 404)
        data = repo.files[name]
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if _is_lfs(name):
            headers |= {
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
            }
            elsewhere = self.address.replace("127.0.0.1", "localhost")  # as a CDN is
            return RedirectResponse(f"{elsewhere}/lfs/{repo.name}/{name}", 302, headers)
        headers["ETag"] = f'"{_git_sha1(data)}"'
        return Response(self.sent.get(name, data), headers=headers)

    async def _lfs(self, request: Request) -> Response:
        repo = self._repo(request)
        assert repo is not None
        data = repo.files[request.path_params["file"]]
        self.told_elsewhere.append(request.headers.get("authorization"))
        asked = request.headers.get("range")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        cut = self.cut_after.pop(0) if self.cut_after else None
        headers = {"Content-Length": str(len(data) - start)}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        sent = bytes(len(data)) if self.wrong else data
        body = self._pieces(sent[start:], cut)
        return StreamingResponse(body, 206 if asked else 200, headers)

    def _pieces(self, data: bytes, cut: int | None) -> Iterator[bytes]:
        for begin in range(0, len(data), _PIECE):
            if cut is not None and begin >= cut:
                raise ConnectionResetError("the test cuts the connection here")
            if begin >= self.hold_after and not self.held.is_set():
                self.reached.set()
                self.held.wait(30)
            yield data[begin : begin + _PIECE]


def _error(code: str, status: int) -> Response:
    return JSONResponse({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})


def unsupported() -> Repo:
    """A model of a family that Potluck does not know."""
    config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": bytes(9)}
    return Repo("anna/snake", files, {"config": config})


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Leave the signals to the tests."""


@contextmanager
def serving_hub() -> Iterator[HubStandIn]:
    """A Hub on a free port of loopback, in a thread."""
    hub = HubStandIn()
    server = _Server(uvicorn.Config(hub.app(), port=0, log_level="critical", lifespan="off"))
    started = threading.Event()
    startup = server.startup

    async def begin(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = begin
    thread = threading.Thread(target=server.run, name="hub")
    thread.start()
    try:
        assert started.wait(10)
        port = server.servers[0].sockets[0].getsockname()[1]
        hub.address = f"http://127.0.0.1:{port}"
        yield hub
    finally:
        hub.held.set()
        server.should_exit = server.force_exit = True
        thread.join(10)
