"""A server of wheels on loopback, with ranges and the faults that servers have."""

import hashlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class WheelServer:
    """What it has and does wrong.

    Attributes:
        files: by their paths.
        cut_after: a response ends after so many bytes, for so many responses.
        statuses: the next responses have these, in place of a file.
        ranges: whether it knows them.
        asked: the `Range` of each request for a file; "": none.
    """

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    cut_after: int = 0
    cuts: int = 0
    statuses: list[int] = field(default_factory=list[int])
    ranges: bool = True
    is_html: bool = False
    asked: list[str] = field(default_factory=list[str])
    address: str = ""

    def page(self) -> tuple[str, bytes]:
        """The index page of all files."""
        if self.is_html:
            links = "".join(f'<a href="../..{path}#sha256=x">{path}</a>' for path in self.files)
            return "text/html", f"<html><body>{links}</body></html>".encode()
        files = [
            {
                "filename": path.rpartition("/")[2],
                "url": f"../..{path}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
            }
            for path, data in self.files.items()
        ]
        return JSON, msgspec.json.encode({"files": files})


@contextmanager
def serving(server: WheelServer) -> Generator[WheelServer]:
    """Serve on loopback meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/simple/"):
                kind, data = server.page()
                self._head(200, len(data), kind)
                self.wfile.write(data)
                return
            server.asked.append(self.headers.get("Range", ""))
            if server.statuses:
                self._head(server.statuses.pop(0), 0)
                return
            data = server.files.get(self.path)
            if data is None:
                self._head(404, 0)
                return
            self._send(data)

        def _send(self, data: bytes) -> None:
            begin, end, status = 0, len(data), 200
            if server.ranges and (span := self.headers.get("Range")):
                first, _, last = span.removeprefix("bytes=").partition("-")
                begin, status = int(first), 206
                end = min(end, int(last) + 1) if last else end
            if begin >= len(data):
                self._head(416, 0)
                return
            span = f"bytes {begin}-{end - 1}/{len(data)}" if status == 206 else ""
            self._head(status, end - begin, span=span)
            stop = end
            if server.cuts:
                server.cuts -= 1
                stop = min(stop, begin + server.cut_after)
            self.wfile.write(data[begin:stop])
            if stop < end:
                self.close_connection = True

        def _head(self, status: int, nbytes: int, kind: str = "", span: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(nbytes))
            if kind:
                self.send_header("Content-Type", kind)
            if span:
                self.send_header("Content-Range", span)
            self.end_headers()

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{listener.server_port}"
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
