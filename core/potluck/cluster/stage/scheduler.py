"""Choose which waiting message is handled next. Pure: no I/O, no threads, no torch, no clock.

The rules:

- The messages of one session are handled in the order in which they came. Steps that wait are dropped
  when their tokens are to be forgotten again: nobody waits for the rest of a prompt that was cancelled.
- Single tokens, those with guesses at the next ones, and control messages (open, trim, close, attach) go first, in the
  order in which they became ready: many people wait for their next token, and each takes milliseconds.
- A chunk of a prompt, or a picture in it, goes when nothing of that kind is ready, or after `TurnLimits.groups_before_chunk`
  groups went before it, so that no prompt waits for ever. Chunks go in the order in which they
  became ready: two prompts take turns.
- The messages of a session that waits for the disk (`hold`) wait as well. Those of others do not.
- A rank of a group whose rank 0 is another process (`in_order`) handles what rank 0 has chosen, in its order.
- Single tokens of different sessions that are ready together are one group. Those that were computed
  together before (`Forward.more`) are ready when the last of them has come, so that a group stays one.

Not thread-safe: whoever has the turn at the reactor puts messages in, and the computing thread
takes groups while it has that turn itself.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from potluck.ids import HomeId, Role
from potluck.wire.activation_messages import (
    CloseSession,
    Forward,
    OpenSession,
    TrimSession,
)
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    ExpectCache,
    FetchCache,
    RankHas,
)
from potluck.wire.frame import Buffer
from potluck.wire.messages import Message, NodeInfo
from potluck.wire.picture_messages import GiveRows, ReadPicture, ShowPicture

Aside: TypeAlias = CacheRows | CacheReceived | CacheSent | CacheGivenUp | FetchCache | RankHas
"""What does not come along the chain, but of stages and ranks beside it: it is in no order with what does."""
Kind = Literal["control", "room", "token", "drafts", "chunk", "picture", "rows"]

_MESSAGE_BYTES = 1024  # what a message without payload counts as
_SQUARE = 3 * 28 * 28  # bytes of a picture's pixels that are about a token's worth
_ID_BYTES = 40  # a token id of a sampling, as an object in a tuple


class PeerLink(Protocol):
    """What a stage needs of a connection to a peer."""

    @property
    def home(self) -> HomeId: ...
    @property
    def peer(self) -> NodeInfo: ...
    @property
    def peer_role(self) -> Role: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_revoked(self) -> bool: ...
    def send_nowait(self, message: Message, payload: Buffer = b"") -> None: ...


class Waiting(NamedTuple):
    """A message that is to be handled."""

    link: PeerLink
    message: Message
    payload: memoryview
    kind: Kind
    nbytes: int  # that it takes in memory while it waits


class Group(NamedTuple):
    """What is handled at once: a control message, a chunk, or single tokens of several sessions.

    "room" is a control message that takes memory for a whole prompt, or copies a session: a slow computer needs
    long for it. "rows" are those of a picture that another tower has read.
    """

    kind: Kind
    members: tuple[Waiting, ...]
    # the last chunk of its prompt, and no other prompt has a chunk that waits
    ends_prompts: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens are computed, or squares of pixels of a picture, but at least 1."""
        if isinstance(message := self.members[0].message, ShowPicture | ReadPicture):
            return max(1, math.prod(message.tensor.shape) // _SQUARE)
        if self.kind in ("chunk", "drafts") and isinstance(
            message := self.members[0].message, Forward
        ):
            return max(1, math.prod(message.tensor.shape[:1]))  # a wrong step may have no axis
        return len(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """How much may wait, and what goes before what. Links are not read while too much waits."""

    nbytes: int = 64 << 20  # the chunks of a prompt, as hidden states
    messages: int = 4096
    group_tokens: int = 32  # single tokens of one group at most
    groups_before_chunk: int = (
        2  # a pipeline of two stages then gives each session a token between chunks
    )
    open_prompts: int = 1024  # of which more chunks are expected; as many as a stage knows sessions


class Scheduler:
    """Messages in, groups out."""

    def __init__(self, limits: TurnLimits | None = None) -> None:
        self.in_order = False
        self._limits = limits or TurnLimits()
        self._sessions: dict[str, deque[Waiting]] = {}  # those with waiting messages
        # Sessions by what their first message is, in the order in which they became ready.
        self._ready_now: deque[str] = deque()  # tokens and control messages
        self._ready_chunks: deque[str] = deque()
        self._held: set[str] = set()  # sessions that are in neither
        self._open_prompts: dict[
            str, None
        ] = {}  # sessions with a prompt whose last chunk has not come
        self._waiting = self._nbytes = 0  # messages, and their bytes
        self._arriving: list[Waiting] = []  # a group whose last message has not come
        self._ordered: deque[Group] = deque()  # that another process has put in order
        self._chunk_waited = 0  # groups that went before the first of the chunks

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return self._waiting

    @property
    def is_full(self) -> bool:
        """Whether more messages wait than may. The links must then not be read."""
        return self._nbytes > self._limits.nbytes or self._waiting > self._limits.messages

    def put(self, link: PeerLink, message: Message, payload: memoryview) -> None:
        """Add a message. Messages without a session are ordered among themselves."""
        session, nbytes = _session(message), _nbytes(message, payload)
        kind = self._kind(session, message)
        self._waiting += 1
        self._nbytes += nbytes
        waiting = Waiting(link, message, payload, kind, nbytes)
        if isinstance(message, Aside):
            self._put_arrived((waiting,))
            return
        self._arriving.append(waiting)
        is_followed = isinstance(message, Forward) and message.more > 0
        if is_followed and not self._is_large_enough:
            return
        arrived, self._arriving = self._arriving, []
        self._put_arrived(tuple(arrived))

    def _put_arrived(self, arrived: tuple[Waiting, ...]) -> None:
        if self.in_order:
            kind = arrived[-1].kind
            self._ordered.append(Group(kind, arrived, ends_prompts=_is_last_chunk(arrived[0])))
            return
        for waiting in arrived:
            self._add(waiting)

    @property
    def _is_large_enough(self) -> bool:
        """Whether the group that arrives goes without its rest. What else waits is no reason: it goes, and the rest comes."""
        if len(self._arriving) >= self._limits.group_tokens:
            return True
        return self.is_full and sum(each.nbytes for each in self._arriving) > self._limits.nbytes

    def _add(self, waiting: Waiting) -> None:
        session = _session(waiting.message)
        self._drop_given_up(session, waiting.message)
        queue = self._sessions.get(session)
        if queue is not None:
            queue.append(waiting)
        else:
            self._sessions[session] = deque((waiting,))
            self._make_ready(session, waiting)

    def _drop_given_up(self, session: str, message: Message) -> None:
        """Drop the steps that wait and whose tokens this message takes away again."""
        queue = self._sessions.get(session)
        if queue is None or not isinstance(message, TrimSession | CloseSession | OpenSession):
            return
        position = message.position if isinstance(message, TrimSession) else 0
        kept = deque(
            waiting
            for waiting in queue
            if not isinstance(waiting.message, Forward | ShowPicture | GiveRows)
            or waiting.message.position < position
        )
        if len(kept) == len(queue):
            return
        self._waiting -= len(queue) - len(kept)
        self._nbytes -= sum(each.nbytes for each in queue) - sum(each.nbytes for each in kept)
        self._sessions[session] = kept
        if not kept or kept[0] is not queue[0]:
            self._make_unready(session, queue[0])
            if kept:
                self._make_ready(session, kept[0])
            else:
                del self._sessions[session]

    def hold(self, session: str) -> None:
        """Let the other messages of a session wait, until `release`."""
        if session in self._sessions:
            self._make_unready(session, self._sessions[session][0])
        self._held.add(session)

    def release(self, session: str) -> None:
        """Go on with a session."""
        self._held.discard(session)
        if session in self._sessions:
            self._make_ready(session, self._sessions[session][0])

    def _kind(self, session: str, message: Message) -> Kind:
        """The kind of a message. It also depends on the messages before it in its session."""
        if isinstance(message, ShowPicture | ReadPicture):
            return "picture"
        if isinstance(message, GiveRows):
            return "rows"
        is_rest = session in self._open_prompts
        self._open_prompts.pop(session, None)
        is_copy = isinstance(message, OpenSession) and message.source is not None  # of gigabytes
        if is_copy or isinstance(message, ExpectCache):
            return "room"
        if not isinstance(message, Forward):
            return "control"  # which gives up the rest of a prompt
        if message.prompt_end is not None:
            self._open_prompts[session] = None
            if len(self._open_prompts) > self._limits.open_prompts:
                del self._open_prompts[next(iter(self._open_prompts))]
            return "chunk"
        if message.drafts:
            return "drafts"
        # The rest of a prompt may be a single token.
        return "chunk" if is_rest or message.tensor.shape[:1] != (1,) else "token"

    def next(self) -> Group | None:
        """Take the group that is handled next; None: nothing waits."""
        if self._ordered:
            group = self._ordered.popleft()
            self._waiting -= len(group.members)
            self._nbytes -= sum(each.nbytes for each in group.members)
            return group
        if self._ready_now and not self._is_chunk_due():
            if self._ready_chunks:
                self._chunk_waited += 1
            return self._next_now()
        if not self._ready_chunks:
            return None
        self._chunk_waited = 0
        chunk = self._take(self._ready_chunks)
        if chunk.kind != "chunk":
            return Group(chunk.kind, (chunk,))
        is_last = _is_last_chunk(chunk) and not self._ready_chunks
        return Group("chunk", (chunk,), ends_prompts=is_last)

    def _is_chunk_due(self) -> bool:
        return bool(self._ready_chunks) and self._chunk_waited >= self._limits.groups_before_chunk

    def _next_now(self) -> Group:
        # Taken before any of their sessions is ready again: the members' sessions differ.
        count = 0
        for session in self._ready_now:
            if self._sessions[session][0].kind != "token" or count == self._limits.group_tokens:
                break
            count += 1
        if not count:
            taken = self._take(self._ready_now)
            return Group(taken.kind, (taken,))
        return Group("token", tuple(self._take(self._ready_now) for _ in range(count)))

    def _take(self, ready: deque[str]) -> Waiting:
        session = ready.popleft()
        queue = self._sessions[session]
        taken = queue.popleft()
        self._waiting -= 1
        self._nbytes -= taken.nbytes
        if queue:
            self._make_ready(session, queue[0])
        else:
            del self._sessions[session]
        return taken

    def _ready_of(self, first: Waiting) -> deque[str]:
        return self._ready_chunks if first.kind in ("chunk", "picture", "rows") else self._ready_now

    def _make_ready(self, session: str, first: Waiting) -> None:
        if session not in self._held:
            self._ready_of(first).append(session)

    def _make_unready(self, session: str, first: Waiting) -> None:
        if session not in self._held:
            self._ready_of(first).remove(session)


def _is_last_chunk(waiting: Waiting) -> bool:
    message = waiting.message
    return waiting.kind == "chunk" and isinstance(message, Forward) and message.prompt_end is None


def _session(message: Message) -> str:
    return "" if isinstance(message, Aside) else getattr(message, "session", "")


def _nbytes(message: Message, payload: memoryview) -> int:
    nbytes = _MESSAGE_BYTES + payload.nbytes
    if isinstance(message, Forward) and message.sampling is not None:
        allowed = message.sampling.allowed or ()
        nbytes += _ID_BYTES * len(message.sampling.history or ())  # the longest lists of a step
        nbytes += len(allowed) * (1 if isinstance(allowed, bytes) else _ID_BYTES)
    return nbytes
