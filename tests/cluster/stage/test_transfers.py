"""Both ends of a transfer between stages: how much is on its way, and what ends it."""

import tracemalloc
from typing import Any, cast

import pytest
import torch
from msgspec import structs
from tiny_models import SESSION, Reference, make_model
from transfer_wire import NOTHING, UnderWay, Wire

from potluck.cluster.stage import giving
from potluck.cluster.stage.transfers import CacheTarget, Transfers
from potluck.engine.caches import moved_parts
from potluck.engine.stage import Stage
from potluck.wire.activation_messages import TensorHeader
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    ExpectCache,
    SendCache,
    TakeCache,
)

EXPECT = ExpectCache(epoch=1, session=SESSION, step=1, transfer="t", position=0, end=40)
SEND = SendCache(epoch=1, session=SESSION, transfer="t", position=0, end=40)
TAKE = TakeCache(epoch=1, session=SESSION, step=2, transfer="t", position=40)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model("llama", tmp_path_factory.mktemp("model"))


class Ends(UnderWay):
    """A stage that reads, and one that answers, both with the whole model."""

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        self.ids = reference.prompt(41)
        self.reads, self.answers = self._stage(reference), self._stage(reference)
        here, there = Wire(self), Wire(self)
        here.other, there.other = there, here
        self.link, self.back = here, there
        self.taken: list[int] = []
        target = CacheTarget(cast("Any", here), range(reference.config.num_layers))
        self.sender = Transfers(self.reads, 1, [target], lambda _: None)
        self.receiver = Transfers(
            self.answers, 1, [], lambda message: self.taken.append(message.position)
        )
        here.receive, there.receive = self.sender.receive, self.receiver.receive

    @staticmethod
    def _stage(reference: Reference) -> Stage:
        stage = reference.stage(head=False)
        stage.open(SESSION, epoch=1)
        return stage

    def read(self, begin: int, end: int) -> None:
        self.reads.forward(SESSION, self.ids[begin:end], epoch=1, step=begin, position=begin)
        self.sender.go_on(SESSION)

    def last_token(self, stage: Stage) -> torch.Tensor:
        output = stage.forward(SESSION, self.ids[40:], epoch=1, step=99, position=40)
        assert output.hidden is not None
        return output.hidden.tensor


@pytest.fixture
def ends(llama: Reference) -> Ends:
    made = Ends(llama)
    made.receiver.expect(EXPECT)
    made.sender.send(SEND)
    return made


def test_a_cache_is_taken_when_all_of_it_is_here(ends: Ends) -> None:
    ends.read(0, 25)
    assert set(ends.pass_on()) == {CacheRows, CacheReceived}
    ends.receiver.take(TAKE)
    ends.read(25, 40)
    assert not ends.taken
    assert CacheSent in ends.pass_on()

    assert ends.taken == [40]
    assert torch.equal(ends.last_token(ends.answers), ends.last_token(ends.reads))


def test_no_more_is_on_its_way_than_the_other_side_writes(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_parts, "PIECE", 1000)
    monkeypatch.setattr(giving, "UNWRITTEN", 3000)
    ends = Ends(llama)
    ends.receiver.expect(EXPECT)
    ends.sender.send(SEND)
    ends.read(0, 40)
    sent = sum(payload.nbytes for _, _, payload in ends.under_way)
    assert 3000 <= sent < 5000
    ends.pass_on()
    ends.receiver.take(TAKE)
    assert ends.taken == [40]


def test_a_lost_connection_ends_the_wait_and_the_stage_has_what_it_had(ends: Ends) -> None:
    ends.read(0, 25)
    ends.pass_on()
    ends.receiver.take(TAKE)
    ends.link.is_closed = ends.back.is_closed = True
    ends.receiver.lost(cast("Any", ends.back))
    ends.sender.lost(cast("Any", ends.link))
    assert ends.taken == [0]
    ends.read(25, 40)
    assert not ends.under_way
    assert ends.answers.position(SESSION) == 0


def test_either_side_gives_up_and_the_other_hears_of_it(ends: Ends) -> None:
    ends.read(0, 25)
    ends.pass_on()
    ends.receiver.drop(SESSION)  # its driver has the prompt computed there
    assert ends.pass_on() == [CacheGivenUp]
    ends.read(25, 40)
    assert not ends.under_way

    ends.receiver.take(TAKE)
    assert ends.taken == [0]


def test_a_conversation_that_its_reader_loses_is_given_up(ends: Ends) -> None:
    ends.read(0, 25)
    ends.pass_on()
    ends.receiver.take(TAKE)
    ends.reads.trim(SESSION, 10, epoch=1)
    ends.sender.go_on(SESSION)
    assert ends.pass_on() == [CacheGivenUp]
    assert ends.taken == [0]


def test_rows_that_nobody_waits_for_are_refused(ends: Ends) -> None:
    ends.read(0, 25)
    link, message, payload = ends.under_way.popleft()
    assert isinstance(message, CacheRows)
    ends.under_way.clear()
    unknown = CacheRows(epoch=1, transfer="other", layer=0, first=0, tensor=message.tensor)
    link.receive(link, unknown, payload)
    assert [type(said) for said in ends.back.sent] == [CacheGivenUp]
    wrong = CacheRows(epoch=1, transfer="t", layer=0, first=7, tensor=message.tensor)
    link.receive(link, wrong, payload)  # of the transfer, and not the next ones
    ends.receiver.take(TAKE)
    assert ends.taken == [0]


@pytest.mark.parametrize("fault", ["twice", "late", "layer", "scheme", "shape", "bytes", "length"])
def test_what_comes_wrong_leaves_the_session_as_it_was(ends: Ends, fault: str) -> None:
    ends.read(0, 40)
    for link, message, payload in list(ends.under_way):
        if not isinstance(message, CacheRows):
            continue
        tensor = message.tensor
        first, heads, rows, numbers = tensor.shape
        match fault:
            case "twice":
                link.receive(link, message, payload)
            case "late":
                ends.receiver.drop(SESSION)
                ends.receiver.expect(structs.replace(EXPECT, transfer="next"))
            case "layer":
                message = structs.replace(message, layer=99)
            case "scheme":  # of a reader that keeps caches in 8 bits
                tensor = TensorHeader(dtype="I8", shape=(first, heads, rows, 4 * numbers))
            case "shape":
                tensor = TensorHeader(dtype=tensor.dtype, shape=(first, rows, heads, numbers))
            case "bytes":
                payload = payload[:-1]
            case _:
                tensor = TensorHeader(dtype=tensor.dtype, shape=(first, heads, rows, 1 << 40))
        link.receive(link, structs.replace(message, tensor=tensor), payload)
        break
    ends.under_way.popleft()
    ends.pass_on()
    ends.receiver.take(TAKE)
    ends.receiver.take(structs.replace(TAKE, transfer="next", position=0))
    assert ends.taken == [0, 0]
    assert ends.answers.position(SESSION) == 0
    ends.answers.forward(SESSION, ends.ids[:40], epoch=1, step=3, position=0)
    assert torch.equal(ends.last_token(ends.answers), ends.last_token(ends.reads))


def test_what_an_earlier_stage_lacks_none_takes(ends: Ends) -> None:
    ends.read(0, 40)
    ends.pass_on()
    ends.receiver.take(TakeCache(epoch=1, session=SESSION, step=2, transfer="t", position=0))
    assert ends.taken == [0]
    assert ends.answers.position(SESSION) == 0


def test_a_peer_may_name_any_number_of_layers(ends: Ends) -> None:
    ends.read(0, 40)
    ends.pass_on()
    tracemalloc.start()
    try:
        ends.receiver.receive(
            cast("Any", ends.back), CacheSent(epoch=1, transfer="t", layers=(0, 1_000_000)), NOTHING
        )
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
