"""Finds a file in a simple index of Python packages, in its JSON form (PEP 691) or as HTML (PEP 503)."""

from html.parser import HTMLParser
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

import httpx
import msgspec

from potluck.errors import HubError
from potluck.runtime.lock import Wheel

MOST_PAGE_BYTES: Final = 32 << 20  # the page of a package with thousands of files has 5 MB
_JSON: Final = "application/vnd.pypi.simple.v1+json"
_ACCEPT: Final = f"{_JSON}, text/html;q=0.1"
_NOT_FOUND: Final = (404, 410)


class _File(msgspec.Struct, frozen=True):
    filename: str
    url: str


class _Page(msgspec.Struct, frozen=True):
    files: list[_File]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def address_in(client: httpx.Client, index: str, wheel: Wheel) -> str | None:
    """Where an index has a wheel; None: it does not have it.

    Raises:
        HubError: it does not answer as an index does.
        httpx.TransportError: it does not answer.
    """
    page = f"{index.rstrip('/')}/{wheel.name}/"
    with client.stream("GET", page, headers={"Accept": _ACCEPT}) as response:
        if response.status_code in _NOT_FOUND:
            return None
        if response.status_code != httpx.codes.OK:
            raise HubError(f"{page} answers with status {response.status_code}.")
        data = bytearray()
        for piece in response.iter_raw():
            data += piece
            if len(data) > MOST_PAGE_BYTES:
                raise HubError(f"{page} is no page of a package index.")
        is_json = response.headers.get("Content-Type", "").startswith(_JSON)
    for filename, url in _files(bytes(data), page, is_json=is_json):
        if filename == wheel.filename:
            return urljoin(str(response.url), url)
    return None


def _files(data: bytes, page: str, *, is_json: bool) -> list[tuple[str, str]]:
    if is_json:
        try:
            return [(f.filename, f.url) for f in msgspec.json.decode(data, type=_Page).files]
        except (msgspec.DecodeError, RecursionError) as error:
            raise HubError(f"{page} is no page of a package index.") from error
    links = _Links()
    links.feed(data.decode(errors="replace"))
    return [(unquote(urlsplit(link).path).rpartition("/")[2], link) for link in links.found]
