"""Messages that move a session's cache: from stages that read a prompt to those that answer, or to those of the next plan.

`expect_cache` and `take_cache` go along the chain that answers, `send_cache` along the one that reads. The others
pass between two stages with layers in common, one of each chain, or one of each plan. The reading stage makes their
connection, or the stage of the next plan. Each rank of a group is such a stage; `rank_has` goes from it to rank 0. `take_sessions` is said on control: it makes the plan of a replica that ends the
one before.
"""

from typing import Annotated

from msgspec import Meta

from potluck.wire.activation_messages import TensorHeader
from potluck.wire.fields import Count, SessionName, Size
from potluck.wire.messages import (
    DeviceId,
    Message,
    PlanBefore,
    PlanKey,
    Told,
)
from potluck.wire.shares import RankNumber, RankShare

TransferName = Annotated[str, Meta(min_length=1, max_length=64)]


class ExpectCache(Message, frozen=True, tag="expect_cache"):
    """Make room for a session's tokens, whose cache rows others will send. Answered by `result`."""

    epoch: Count
    session: SessionName
    step: Count
    transfer: TransferName
    position: Count  # of the first of these tokens; must equal the end of the stage's cache
    end: Count  # the position after the last one
    before: Count | None = None  # epoch of the plan whose stages have them; None: others send them


class SendCache(Message, frozen=True, tag="send_cache"):
    """Send the rows of these tokens of a session as they are computed."""

    epoch: Count
    session: SessionName
    transfer: TransferName
    position: Count
    end: Count


class TakeCache(Message, frozen=True, tag="take_cache"):
    """Wait until all rows are here, then go on with them. Answered by `result`."""

    epoch: Count
    session: SessionName
    step: Count
    transfer: TransferName
    position: Count  # where the session goes on, or where a stage before has to go on


class FetchCache(Message, frozen=True, tag="fetch_cache"):
    """Send the rows of a session's tokens before `end`, which the stage has of an earlier plan."""

    epoch: Count  # of that plan
    session: SessionName
    transfer: TransferName
    layers: tuple[Count, Count]  # start, stop
    end: Count
    key: PlanKey | None = None  # of that plan
    share: RankShare | None = None  # of each layer that the sender of this has; None: all of it
    had: RankNumber | None = (
        None  # the rank of the group before whose cache it has: of that, nothing is sent
    )


class RankHas(Message, frozen=True, tag="rank_has"):
    """So many tokens of a session are cached here: the answer of another rank to rank 0, which asks all."""

    epoch: Count
    session: SessionName
    step: Count  # of the `take_cache` or `restore_session` that is answered
    position: Count


class ForgetBefore(Message, frozen=True, tag="forget_before"):
    """No more sessions are taken over from the plan before. What is left of it is of no use."""

    epoch: Count


class TakeSessions(Message, frozen=True, tag="take_sessions"):
    """Have a stage in force go on with the sessions of another plan, which ends. Answered by `taking_sessions`."""

    epoch: Count  # of the plan in force
    before: PlanBefore
    device: DeviceId | None = None  # whose stage; None: the best one's


class TakingSessions(Message, frozen=True, tag="taking_sessions"):
    """The stage is connected with those of the plan that ends: `expect_cache` may name it."""

    epoch: Count


class CacheRows(Message, frozen=True, tag="cache_rows"):
    """Some rows of a layer's cache. Payload: (2, heads, rows, numbers), or values of a state (1, 1, 1, values).

    They are in the form that the sender's cache has.
    """

    epoch: Count
    transfer: TransferName
    layer: Count
    first: Count  # position of the first row, or number of the first pool; 0 of a state
    tensor: TensorHeader
    part: Count = 0  # of the layer's cache, where it has several
    lane: Count = 0  # number of the first head in the whole layer; of a state, of the first value


class CacheReceived(Message, frozen=True, tag="cache_received"):
    """So many bytes of rows have been written on this connection. More may be sent."""

    epoch: Count
    transfer: TransferName
    nbytes: Size


class CacheSent(Message, frozen=True, tag="cache_sent"):
    """All rows of these layers were sent: nothing more comes on this connection."""

    epoch: Count
    transfer: TransferName
    layers: tuple[Count, Count]  # start, stop


class CacheGivenUp(Told, frozen=True, tag="cache_given_up"):
    """One side ends the transfer. What was sent is of no use."""

    epoch: Count
    transfer: TransferName
