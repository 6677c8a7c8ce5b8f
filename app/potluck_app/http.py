"""HTTP to the node on Qt's own event loop: calls with one answer, and streams of events.

Every request ends in exactly one signal. A failure is a `Problem`, a sentence for the person: it
comes from the node if the node answered, else from here.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from PySide6.QtCore import QByteArray, QObject, QUrl, Signal
from PySide6.QtNetwork import (
    QNetworkAccessManager,
    QNetworkProxy,
    QNetworkReply,
    QNetworkRequest,
)

from potluck.api.values.errors import ApiErrorBody, ErrorBody
from potluck_app.sse import EventParser, EventTooLargeError

logger = logging.getLogger(__name__)

Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]

CALL_TIMEOUT_MS = 60_000  # the node asks other computers and the Hub; its own deadlines are shorter


class Endpoint(Struct, frozen=True):
    """The port of the node, and the token that gives access to it."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Problem(Struct, frozen=True):
    """Why a request failed. `unreachable`: the node did not answer at all."""

    message: str
    code: str = "error"
    unreachable: bool = False


class Call(QObject):
    """One request and its answer.

    Signals:
        done: the decoded answer.
        failed: a Problem.
    """

    done = Signal(object)
    failed = Signal(object)

    def then(
        self,
        done: Callable[[Any], object] | None = None,
        failed: Callable[[Problem], object] | None = None,
    ) -> "Call":
        """Call `done` with the answer, or `failed` with the Problem."""
        if done is not None:
            self.done.connect(done)
        if failed is not None:
            self.failed.connect(failed)
        return self


class EventStream(QObject):
    """A request whose answer is a stream of events.

    Signals:
        received: the data of one event, as bytes.
        commented: the last comment that came with them.
        ended: None if the node ended the stream, else a Problem.
    """

    received = Signal(object)
    commented = Signal(str)
    ended = Signal(object)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._parser = EventParser()
        self._reply: QNetworkReply | None = None
        self.is_over = False

    def attach(self, reply: QNetworkReply) -> None:
        """Read this reply until it ends."""
        self._reply = reply
        reply.readyRead.connect(self._read)
        reply.finished.connect(self._finish)

    def close(self) -> None:
        """Stop reading, which the node notices. `ended` is not sent."""
        self.is_over = True
        if self._reply is not None:
            self._reply.abort()
        self.deleteLater()

    def _read(self) -> None:
        reply = self._reply
        if reply is None or self.is_over or _status(reply) != 200:
            return
        try:
            events = self._parser.feed(_rest(reply))
        except EventTooLargeError:
            self._end(Problem("The answer could not be read: a part of it is too long."))
            reply.abort()
            return
        if comment := self._parser.take_comment():
            self.commented.emit(comment)
        for data in events:
            if not self.is_over:
                self.received.emit(data)

    def _finish(self) -> None:
        reply = self._reply
        if reply is None:
            return
        self._read()
        if not self.is_over:
            self._end(problem_of(reply, _rest(reply)))
        reply.deleteLater()

    def _end(self, problem: Problem | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended.emit(problem)
            self.deleteLater()


class Http(QObject):
    """Requests to one endpoint."""

    def __init__(self, endpoint: Endpoint, parent: QObject) -> None:
        super().__init__(parent)
        self.endpoint = endpoint
        self._manager = QNetworkAccessManager(self)
        # The proxy of the system is for the internet; it cannot reach this computer's loopback.
        self._manager.setProxy(QNetworkProxy(QNetworkProxy.ProxyType.NoProxy))

    def call(
        self, call: Call, method: Method, path: str, body: object = None, answer: Any = None
    ) -> None:
        """Send a request. `answer` is the type of the answer; None: the answer has no content."""
        reply = self._send(method, path, body, CALL_TIMEOUT_MS)
        reply.finished.connect(lambda: _answer(call, reply, answer))

    def stream(
        self,
        stream: EventStream,
        method: Method,
        path: str,
        body: object = None,
        silence_ms: int = 0,
    ) -> None:
        """Send a request that is answered by events. It ends after `silence_ms` without data."""
        if not stream.is_over:  # it may have been closed while it waited for the node
            stream.attach(self._send(method, path, body, silence_ms))

    def close(self) -> None:
        """End all requests in progress; each sends its signal."""
        for reply in self._manager.findChildren(QNetworkReply):
            reply.abort()
        self.deleteLater()

    def _send(self, method: Method, path: str, body: object, timeout_ms: int) -> QNetworkReply:
        request = QNetworkRequest(QUrl(self.endpoint.url + path))
        request.setRawHeader(b"Authorization", f"Bearer {self.endpoint.token}".encode())
        request.setAttribute(
            QNetworkRequest.Attribute.RedirectPolicyAttribute,
            QNetworkRequest.RedirectPolicy.ManualRedirectPolicy,
        )
        request.setAttribute(QNetworkRequest.Attribute.Http2AllowedAttribute, False)
        if timeout_ms:
            request.setTransferTimeout(timeout_ms)
        data = QByteArray()
        if body is not None:
            request.setHeader(QNetworkRequest.KnownHeaders.ContentTypeHeader, "application/json")
            data = QByteArray(msgspec.json.encode(body))
        return self._manager.sendCustomRequest(request, QByteArray(method.encode()), data)


def _status(reply: QNetworkReply) -> int | None:
    return reply.attribute(QNetworkRequest.Attribute.HttpStatusCodeAttribute)


def _rest(reply: QNetworkReply) -> bytes:
    """Return the bytes that were not read yet. An aborted reply is closed and has none."""
    return bytes(reply.readAll().data()) if reply.isOpen() else b""


def _answer(call: Call, reply: QNetworkReply, answer: Any) -> None:
    body = _rest(reply)
    problem = problem_of(reply, body)
    reply.deleteLater()
    if problem is None:
        try:
            result = None if answer is None else msgspec.json.decode(body, type=answer)
        except msgspec.MsgspecError as error:
            logger.warning("an answer could not be read path=%s: %s", reply.url().path(), error)
            problem = Problem("The answer of Potluck's background process could not be read.")
        else:
            call.done.emit(result)
    if problem is not None:
        call.failed.emit(problem)
    call.deleteLater()


def problem_of(reply: QNetworkReply, body: bytes) -> Problem | None:
    """Return what went wrong with a finished request, or None."""
    status = _status(reply)
    if status is None:
        logger.info("no answer from the node error=%s", reply.error().name)
        return Problem("Potluck's background process does not answer.", unreachable=True)
    if status < 400 and reply.error() == QNetworkReply.NetworkError.NoError:
        return None
    if status < 400:
        return Problem("Potluck's background process ended in the middle.", unreachable=True)
    for shape in (ErrorBody, ApiErrorBody):
        try:
            error = msgspec.json.decode(body, type=shape).error
        except msgspec.MsgspecError:
            continue
        return Problem(error.message, code=error.code or "error")
    return Problem(f"Potluck's background process refused this (status {status}).")
