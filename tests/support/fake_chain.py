"""A chain of stages that computes nothing but checks positions, sessions and order."""

import asyncio
import struct
from collections.abc import Callable

from potluck.cluster.driver.computed import prefix_digests
from potluck.wire.activation_messages import (
    PREFIX_TOKENS,
    Attach,
    ChosenToken,
    CloseSession,
    Forward,
    KeepSession,
    OpenSession,
    RestoreSession,
    Result,
    TrimSession,
)
from potluck.wire.cache_messages import ExpectCache, ForgetBefore, SendCache, TakeCache
from potluck.wire.messages import Message, NodeInfo, StepFailed


def next_token(tokens: list[int]) -> int:
    """Return the fake model's next token, which depends on all tokens and their order."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 997
    return value


class FakeChain:
    """Both ends of a pipeline. The chain calls `report` when a step fails."""

    def __init__(self) -> None:
        self.caches: dict[str, list[int]] = {}
        self.forwards: list[Forward] = []
        self.opened: list[str] = []
        self.trims: list[int] = []
        self.kept: list[list[int]] = []  # what was cached of sessions that were to be kept
        self.restores: list[RestoreSession] = []
        self.reader: FakeChain | None = None  # whose caches it takes over
        self.moved: int | None = None  # so many tokens come of these at most
        self.expected: list[ExpectCache] = []
        self.forgets = 0  # how often what is left of the plan before was given back
        self.has_no_room = False  # for what it is to take over
        self.never_takes = False  # what it is to take over never comes
        self.closed: list[str] = []
        self.attached: int | None = None
        self.is_closed = False
        self.is_silent = False  # if True, steps go in and no result comes out
        # Tokens that all caches may hold together. Beyond, the least recently used cache is
        # emptied.
        self.room: int | None = None
        self.evictions = 0
        self.report: Callable[[StepFailed], None] = lambda _: None
        self.next_token = next_token  # from all tokens so far
        self._said: list[Message] = []  # messages from the time before a receiver was set
        self._receiver: Callable[[Message, memoryview], None] | None = None
        self._end = asyncio.Event()

    def send_nowait(self, message: Message, payload: bytes = b"") -> None:
        match message:
            case Attach():
                self.attached = message.epoch
            case OpenSession():
                self.opened.append(message.session)
                begin = self.caches.get(message.source or "", [])[: message.position]
                self.caches[message.session] = list(begin)
            case TrimSession():
                self.trims.append(message.position)
                del self.caches.get(message.session, [])[message.position :]
            case CloseSession():
                self.closed.append(message.session)
                self.caches.pop(message.session, None)
            case KeepSession():
                self.kept.append(list(self.caches[message.session]))
            case RestoreSession():
                self._restore(message)
            case ForgetBefore():
                self.forgets += 1
            case ExpectCache():
                self.expected.append(message)
                assert message.position == len(self.caches[message.session])
                if self.has_no_room:
                    self._refuse(message, "out_of_memory")
                else:
                    self._say_where(message, message.position)
            case SendCache():
                pass
            case TakeCache():
                self._take(message)
            case Forward():
                self._forward(message, payload)
            case _:
                raise AssertionError(message)

    def _forward(self, message: Forward, payload: bytes) -> None:
        self.forwards.append(message)
        cache = self.caches.get(message.session)
        if self.is_silent:
            return
        if cache is None or message.position != len(cache):
            kind = "unknown_session" if cache is None else "need_replay"
            self._refuse(message, kind, position=None if cache is None else len(cache))
            return
        tokens = struct.unpack(f"<{message.tensor.shape[0]}i", payload)
        assert tokens[1:] == message.drafts or not message.drafts
        cache.extend(self.cached(tokens[: len(tokens) - len(message.drafts)]))
        accepted: list[ChosenToken] = []
        token = self.next_token(cache)
        for draft in message.drafts:
            if draft != token:
                break
            accepted.append(ChosenToken(token_id=token))
            cache.append(token)
            token = self.next_token(cache)
        self._make_room(message.session)
        self.say(
            Result(
                epoch=message.epoch,
                session=message.session,
                step=message.step,
                position=len(cache),
                token_id=token if message.sampling else None,
                compute_ms=(1.0,),
                accepted=tuple(accepted),
            )
        )

    def _refuse(
        self, message: Forward | ExpectCache, kind: str, *, position: int | None = None
    ) -> None:
        failure = StepFailed(
            epoch=message.epoch,
            session=message.session,
            step=message.step,
            kind=kind,
            message="the cache is not there",
            position=position,
        )
        asyncio.get_running_loop().call_soon(self.report, failure)

    def _restore(self, message: RestoreSession) -> None:
        """Take over what is kept, if it is whole in the prompt, as the only one of its stages that has so much."""
        self.restores.append(message)
        found = [k for k in self.kept if message.prefix.startswith(prefix_digests(k))]
        kept = max(found, key=len, default=[])
        position = min(len(kept) // PREFIX_TOKENS * PREFIX_TOKENS, message.position)
        self.caches[message.session] = list(kept)
        if self.is_silent:
            return
        self.say(
            Result(
                epoch=message.epoch, session=message.session, step=message.step, position=position
            )
        )

    def _take(self, message: TakeCache) -> None:
        if self.never_takes:
            return
        cache = self.caches[message.session]
        if self.reader is None:
            cache.clear()
        elif self.moved is None:
            cache[:] = self.reader.caches[message.session][: message.position]
        else:
            del cache[self.moved :]
        self._say_where(message, len(cache))

    def _say_where(self, message: ExpectCache | TakeCache, position: int) -> None:
        self.say(
            Result(
                epoch=message.epoch, session=message.session, step=message.step, position=position
            )
        )

    def cached(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """What the caches hold of the tokens of one step."""
        return tokens

    def _make_room(self, session: str) -> None:
        # The order is by last use: move the session to the end.
        self.caches[session] = self.caches.pop(session)
        for cache in self.caches.values():
            if self.room is not None and sum(map(len, self.caches.values())) > self.room and cache:
                cache.clear()
                self.evictions += 1

    def say(self, message: Message) -> None:
        """Deliver this message as from another thread: only after the caller has returned."""
        if self._receiver is None:
            self._said.append(message)
        else:
            asyncio.get_running_loop().call_soon(self._receiver, message, memoryview(b""))

    def break_off(self) -> None:
        self._end.set()

    @property
    def peer(self) -> NodeInfo:
        return NodeInfo(node_id="0" * 64, name="Laptop", version="1", os="", arch="")

    def deliver_to(self, receiver: Callable[[Message, memoryview], None]) -> None:
        self._receiver = receiver
        said, self._said = self._said, []
        for message in said:
            self.say(message)

    async def wait_closed(self) -> None:
        await self._end.wait()

    def close(self) -> None:
        self.is_closed = True


class RoundingChain(FakeChain):
    """The bits of a token depend on how many others were computed in the same step."""

    def cached(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token + 1000 * len(tokens) for token in tokens)
