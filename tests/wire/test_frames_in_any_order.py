"""TLS brings each frame once and in order. A peer that does not is refused, or changes nothing."""

from connection_pair import Pair, receive
from frames import frame_bytes
from hypothesis import given
from hypothesis import strategies as st

from potluck.wire.connection import Connection
from potluck.wire.events import Answered, Closed, Opened
from potluck.wire.messages import Goodbye, Unload, Unloaded, WarmingUp, Welcome

REQUESTS = 3


def dialogue() -> tuple[Pair, Connection, list[bytes]]:
    """A connection that has asked three times, and all frames that its peer has for it."""
    pair = Pair()
    asking = pair.a
    asking.start()
    pair.carry()
    numbers = [asking.request(Unload(epoch=epoch)) for epoch in range(REQUESTS)]
    answers = [Unloaded(re=number, epoch=number) for number in numbers]
    welcome = Welcome(version=1, node=pair.b.me)
    rest = [WarmingUp(epoch=1, progress=0.5), Goodbye(reason="quit")]
    return pair, asking, [frame_bytes(message) for message in (welcome, *answers, *rest)]


@given(st.lists(st.integers(0, REQUESTS + 2), max_size=12))
def test_no_order_of_frames_answers_a_request_twice_or_wrongly(order: list[int]) -> None:
    pair, asking, frames = dialogue()
    for number in order:
        receive(asking, frames[number], pair.now)
        pair.drain(asking)  # keeps the errors of a peer; any other exception fails the test

    answered = [event for event in pair.events[asking] if isinstance(event, Answered)]
    expected = [Unloaded(re=event.request, epoch=event.request) for event in answered]
    assert [event.message for event in answered] == expected
    assert len({event.request for event in answered}) == len(answered)
    kinds = [type(event) for event in pair.events[asking]]
    assert kinds.count(Opened) == 1  # a second welcome opens nothing
    assert kinds.count(Closed) <= 1


@given(st.permutations(range(1, REQUESTS + 2)))
def test_answers_in_any_order_find_their_requests(order: list[int]) -> None:
    pair, asking, frames = dialogue()
    for number in order:
        receive(asking, frames[number], pair.now)
    pair.drain(asking)

    answered = [event for event in pair.events[asking] if isinstance(event, Answered)]
    assert len(answered) == REQUESTS
    assert not pair.errors
