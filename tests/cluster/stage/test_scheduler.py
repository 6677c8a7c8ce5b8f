"""Sequences: what is put in, and which groups come out. Sessions are letters, and tokens small ones."""

import msgspec
import pytest

from potluck.cluster.stage.scheduler import PeerLink, Scheduler, TurnLimits
from potluck.ids import HomeId, Role
from potluck.wire.activation_messages import (
    Attach,
    CloseSession,
    Forward,
    OpenSession,
    RestoreSession,
    Sampling,
    TensorHeader,
    TrimSession,
)
from potluck.wire.cache_messages import CacheSent, ExpectCache, RankHas
from potluck.wire.frame import Buffer
from potluck.wire.messages import Message, NodeInfo


class Link:
    home = HomeId("home")
    peer = NodeInfo(node_id="0" * 64, name="Desk", version="1", os="", arch="")
    peer_role: Role = "master"
    is_closed = is_revoked = False

    def send_nowait(self, message: Message, payload: Buffer = b"") -> None:
        raise AssertionError("a scheduler sends nothing")


LINK: PeerLink = Link()


class Bench:
    """A scheduler whose groups are written as a line: `a1` is step 1 of session a, `open a` says itself."""

    def __init__(self, limits: TurnLimits | None = None) -> None:
        self.scheduler = Scheduler(limits)

    def put(self, message: Message, payload: bytes = b"") -> None:
        self.scheduler.put(LINK, message, memoryview(payload))

    def token(self, session: str, step: int = 1, *, more: int = 0) -> None:
        tensor = TensorHeader(dtype="I32", shape=(1,))
        self.put(
            Forward(epoch=1, session=session, step=step, position=step, tensor=tensor, more=more)
        )

    def chunk(self, session: str, step: int = 1, *, tokens: int = 4, is_last: bool = False) -> None:
        tensor = TensorHeader(dtype="I32", shape=(tokens,))
        end = None if is_last else 99
        self.put(
            Forward(epoch=1, session=session, step=step, position=0, tensor=tensor, prompt_end=end)
        )

    def drafts(self, session: str, step: int = 1) -> None:
        tensor = TensorHeader(dtype="I32", shape=(4,))
        self.put(
            Forward(
                epoch=1, session=session, step=step, position=step, tensor=tensor, drafts=(1, 2, 3)
            )
        )

    def open(self, session: str) -> None:
        self.put(OpenSession(epoch=1, session=session))

    def next(self) -> str:
        group = self.scheduler.next()
        if group is None:
            return "nothing"
        words: list[str] = []
        for member in group.members:
            message = member.message
            if isinstance(message, Forward):
                words.append(f"{message.session}{message.step}")
            else:
                words.append(f"{type(message).__name__} {getattr(message, 'session', '')}".strip())
        return f"{group.kind} {' '.join(words)}"

    def rest(self) -> list[str]:
        return list(iter(self.next, "nothing"))


def test_nothing_waits_at_first() -> None:
    bench = Bench()
    assert bench.next() == "nothing"
    assert not bench.scheduler.waiting


def test_tokens_of_several_sessions_that_are_ready_together_are_one_group() -> None:
    bench = Bench()
    bench.token("a")
    bench.token("b")
    bench.token("c")
    assert bench.rest() == ["token a1 b1 c1"]


def test_two_tokens_of_one_session_are_two_groups_in_their_order() -> None:
    bench = Bench()
    bench.token("a", 1)
    bench.token("a", 2)
    bench.token("b", 1)
    assert bench.rest() == ["token a1 b1", "token a2"]


def test_a_token_with_guesses_goes_before_chunks_and_by_itself() -> None:
    bench = Bench()
    bench.chunk("a")
    bench.token("b")
    bench.drafts("c")
    bench.token("d")
    bench.token("e")
    assert bench.next() == "token b1"
    group = bench.scheduler.next()
    assert group is not None
    assert (group.kind, group.tokens) == ("drafts", 4)
    assert bench.rest() == ["chunk a1", "token d1 e1"]


@pytest.mark.parametrize(("shape", "tokens"), [((), 1), ((0,), 1), ((5,), 5), ((5, 8), 5)])
def test_a_chunk_counts_its_tokens_whatever_its_shape_is(
    shape: tuple[int, ...], tokens: int
) -> None:
    """A wrong shape is refused when it is computed, and says so to its sender."""
    bench = Bench()
    tensor = TensorHeader(dtype="I32", shape=shape)
    bench.put(Forward(epoch=1, session="a", step=1, position=0, tensor=tensor, prompt_end=9))
    group = bench.scheduler.next()
    assert group is not None
    assert group.tokens == tokens


def test_a_group_has_a_largest_size() -> None:
    bench = Bench(TurnLimits(group_tokens=2))
    for session in "abc":
        bench.token(session)
    assert bench.rest() == ["token a1 b1", "token c1"]


def test_tokens_that_were_computed_together_are_ready_when_the_last_one_has_come() -> None:
    bench = Bench()
    bench.token("a", more=2)
    bench.token("b", more=1)
    assert bench.next() == "nothing"
    assert bench.scheduler.waiting == 2
    bench.token("c")
    assert bench.rest() == ["token a1 b1 c1"]


def test_a_group_that_is_promised_for_ever_is_computed_when_it_is_large_enough() -> None:
    bench = Bench(TurnLimits(group_tokens=2))
    bench.token("a", more=9)
    bench.token("b", more=9)
    assert bench.rest() == ["token a1 b1"]


def test_a_group_whose_rest_does_not_come_goes_with_what_comes_next() -> None:
    bench = Bench()
    bench.token("a", more=1)
    bench.open("b")
    assert bench.rest() == ["token a1", "control OpenSession b"]


def test_a_token_goes_before_the_chunks_of_another_session_that_waited_longer() -> None:
    bench = Bench()
    bench.chunk("a", 1)
    bench.chunk("a", 2, is_last=True)
    bench.token("b")
    assert bench.rest() == ["token b1", "chunk a1", "chunk a2"]


def test_the_messages_of_a_session_keep_their_order() -> None:
    bench = Bench()
    bench.open("a")
    bench.chunk("a", 1)
    bench.put(TrimSession(epoch=1, session="a", position=3))
    bench.chunk("a", 2, is_last=True)
    bench.open("b")
    assert bench.rest() == [
        "control OpenSession a",
        "control OpenSession b",
        "chunk a1",
        "control TrimSession a",
        "chunk a2",
    ]


def test_chunks_that_are_to_be_forgotten_again_are_not_computed() -> None:
    bench = Bench()
    tensor = TensorHeader(dtype="I32", shape=(4,))
    for step, position in enumerate((0, 4, 8), 1):
        bench.put(
            Forward(
                epoch=1, session="a", step=step, position=position, tensor=tensor, prompt_end=99
            )
        )
    bench.chunk("b", 1)
    bench.put(TrimSession(epoch=1, session="a", position=4))
    assert bench.scheduler.waiting == 3
    assert bench.rest() == ["chunk a1", "control TrimSession a", "chunk b1"]


@pytest.mark.parametrize("message", [CloseSession, OpenSession])
def test_the_chunks_of_a_session_that_ends_are_not_computed(
    message: type[CloseSession | OpenSession],
) -> None:
    bench = Bench(TurnLimits(messages=2))
    bench.open("a")
    bench.chunk("a", 1)
    bench.chunk("a", 2)
    assert bench.scheduler.is_full
    bench.put(message(epoch=1, session="a"))
    assert not bench.scheduler.is_full
    assert bench.rest() == ["control OpenSession a", f"control {message.__name__} a"]


def test_what_has_no_session_waits_for_no_chunk() -> None:
    bench = Bench()
    bench.chunk("a")
    bench.put(Attach(epoch=1))
    assert bench.rest() == ["control Attach", "chunk a1"]


def test_two_prompts_take_turns() -> None:
    bench = Bench()
    for step in (1, 2):
        bench.chunk("a", step, is_last=step == 2)
    for step in (1, 2):
        bench.chunk("b", step, is_last=step == 2)
    assert bench.rest() == ["chunk a1", "chunk b1", "chunk a2", "chunk b2"]


def test_a_prompt_is_not_starved_by_tokens_that_never_end() -> None:
    bench = Bench(TurnLimits(groups_before_chunk=3))
    bench.chunk("a", 1)
    bench.chunk("a", 2, is_last=True)
    served: list[str] = []
    for step in range(8):
        bench.token("b", step)
        served.append(bench.next())
    assert served == [
        "token b0", "token b1", "token b2", "chunk a1",
        "token b3", "token b4", "token b5", "chunk a2",
    ]  # fmt: skip


def test_groups_before_a_prompt_came_are_not_counted() -> None:
    bench = Bench(TurnLimits(groups_before_chunk=2))
    for step in range(5):
        bench.token("b", step)
        assert bench.next() == f"token b{step}"
    bench.chunk("a")
    bench.token("b", 5)
    assert bench.rest() == ["token b5", "chunk a1"]


def test_the_rest_of_a_prompt_is_a_chunk_though_it_be_a_single_token() -> None:
    bench = Bench()
    bench.chunk("a", 1)
    bench.token("a", 2)
    bench.token("a", 3)
    assert bench.rest() == ["chunk a1", "chunk a2", "token a3"]


def test_room_for_a_prompt_goes_first_too_and_is_told_from_what_takes_no_time() -> None:
    bench = Bench()
    bench.chunk("a")
    bench.put(ExpectCache(epoch=1, session="b", step=1, transfer="t", position=0, end=9))
    bench.open("c")
    bench.put(OpenSession(epoch=1, session="d", source="a", position=4))  # a copy of gigabytes
    kinds: list[str] = []
    while (group := bench.scheduler.next()) is not None:
        kinds.append(group.kind)
    assert kinds == [
        "room",
        "control",
        "chunk",
        "room",
    ]  # the copy is made when its source has come so far


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (TensorHeader(dtype="I32", shape=(1,)), "token"),
        (TensorHeader(dtype="F32", shape=(1, 32)), "token"),
        (TensorHeader(dtype="I32", shape=(2,)), "chunk"),
        (TensorHeader(dtype="F32", shape=(2, 32)), "chunk"),
    ],
)
def test_ids_and_hidden_states_of_one_token_are_a_token(tensor: TensorHeader, kind: str) -> None:
    bench = Bench()
    bench.put(Forward(epoch=1, session="s", step=1, position=0, tensor=tensor))
    assert bench.rest() == [f"{kind} s1"]


def test_prompts_that_are_interleaved_each_have_their_rest() -> None:
    bench = Bench()
    bench.chunk("a", 1)
    bench.chunk("b", 1)
    bench.token("a", 2)  # the rest of a's prompt
    bench.token("c", 1)
    bench.token("b", 2)
    assert bench.rest() == ["token c1", "chunk a1", "chunk b1", "chunk a2", "chunk b2"]


@pytest.mark.parametrize("given_up_by", [OpenSession, CloseSession, TrimSession])
def test_a_prompt_that_is_given_up_has_no_rest(given_up_by: type[Message]) -> None:
    bench = Bench()
    bench.chunk("a", 1)
    more = {"position": 0} if given_up_by is TrimSession else {}
    bench.put(
        msgspec.convert(
            {"epoch": 1, "session": "a", "op": given_up_by.__struct_config__.tag, **more},
            given_up_by,
        )
    )
    bench.token("a", 2)
    assert bench.rest() == [f"control {given_up_by.__name__} a", "token a2"]


def test_of_prompts_whose_rest_never_comes_only_so_many_are_known() -> None:
    bench = Bench(TurnLimits(open_prompts=2))
    for session in "abc":
        bench.chunk(session)
    bench.rest()
    for session in "abc":
        bench.token(session, 2)
    assert bench.rest() == ["token a2", "chunk b2", "chunk c2"]


def test_prompts_have_ended_when_the_last_chunk_was_taken_and_none_waits() -> None:
    bench = Bench()
    bench.chunk("a", 1)
    bench.chunk("a", 2, is_last=True)
    bench.chunk("b", 1, is_last=True)
    bench.token("c")
    ended: list[bool] = []
    while (group := bench.scheduler.next()) is not None:
        ended.append(group.ends_prompts)
    assert ended == [False, False, False, True]  # c's token, a1, b1 while a2 waits, a2


def test_too_many_bytes_or_messages_are_too_much_until_they_are_taken() -> None:
    bench = Bench(TurnLimits(nbytes=5000, messages=3))
    bench.put(Attach(epoch=1), bytes(3000))
    assert not bench.scheduler.is_full
    bench.put(Attach(epoch=1))
    assert bench.scheduler.is_full
    assert bench.scheduler.waiting == 2
    bench.next()
    assert not bench.scheduler.is_full
    for _ in range(3):
        bench.put(Attach(epoch=1))
    assert bench.scheduler.is_full
    bench.rest()
    assert not bench.scheduler.is_full


def test_a_history_counts_as_what_it_takes() -> None:
    bench = Bench(TurnLimits(nbytes=20_000))
    tensor = TensorHeader(dtype="I32", shape=(1,))
    sampling = Sampling(repetition_penalty=1.1, history=(1,) * 1000)
    bench.put(Forward(epoch=1, session="s", step=1, position=0, tensor=tensor, sampling=sampling))
    assert bench.scheduler.is_full


def test_a_session_that_waits_for_the_disk_holds_up_no_other_one() -> None:
    bench = Bench()
    bench.put(RestoreSession(epoch=1, session="a", step=1, position=64, prefix=b""))
    bench.chunk("a", 2)
    assert bench.next() == "control RestoreSession a"
    bench.scheduler.hold("a")
    bench.chunk("a", 3, is_last=True)
    bench.token("b")
    bench.chunk("c", 1, is_last=True)

    assert bench.rest() == ["token b1", "chunk c1"]
    assert bench.scheduler.waiting == 2

    bench.scheduler.release("a")
    assert bench.rest() == ["chunk a2", "chunk a3"]


def test_a_prompt_that_is_cancelled_while_it_waits_for_the_disk_is_dropped() -> None:
    bench = Bench()
    bench.scheduler.hold("a")
    bench.chunk("a", 1)
    bench.put(CloseSession(epoch=1, session="a"))
    assert bench.next() == "nothing"

    bench.scheduler.release("a")
    assert bench.rest() == ["control CloseSession a"]


def test_a_session_of_which_nothing_waits_can_be_held() -> None:
    bench = Bench()
    bench.scheduler.hold("a")
    bench.scheduler.release("a")
    bench.token("a")
    assert bench.rest() == ["token a1"]


def test_a_rank_does_what_rank_0_has_chosen_in_its_order() -> None:
    bench = Bench()
    bench.scheduler.in_order = True
    bench.chunk("a")
    bench.token("b", more=1)
    bench.token("c")
    bench.open("d")

    assert bench.rest() == ["chunk a1", "token b1 c1", "control OpenSession d"]
    assert bench.scheduler.waiting == 0
    assert not bench.scheduler.is_full


def test_what_other_stages_send_of_caches_comes_between_no_tokens_of_a_group() -> None:
    """A rank that computed them apart would no longer do what rank 0 does."""
    bench = Bench()
    bench.scheduler.in_order = True
    bench.token("a", more=1)
    bench.put(CacheSent(epoch=1, transfer="t", layers=(0, 1)))
    bench.token("b")
    assert bench.rest() == ["control CacheSent", "token a1 b1"]


def test_what_another_rank_has_is_heard_though_its_session_waits() -> None:
    bench = Bench()
    bench.scheduler.hold("a")
    bench.put(RankHas(epoch=1, session="a", step=1, position=64))
    bench.token("a")
    assert bench.rest() == ["control RankHas a"]
    bench.scheduler.release("a")
    assert bench.rest() == ["token a1"]


def test_a_group_is_not_cut_because_of_what_else_waits() -> None:
    """A rank would compute in two steps what rank 0 computes in one."""
    bench = Bench(TurnLimits(nbytes=5000))
    bench.scheduler.in_order = True
    bench.put(Attach(epoch=1), bytes(5000))
    bench.token("a", more=1)
    assert bench.scheduler.is_full
    assert bench.next() == "control Attach"
    assert not bench.scheduler.is_full  # so that the rest is read
    bench.token("b")
    assert bench.rest() == ["token a1 b1"]


def test_a_group_that_is_too_large_by_itself_goes_without_its_rest() -> None:
    bench = Bench(TurnLimits(nbytes=1500))
    bench.scheduler.in_order = True
    bench.token("a", more=2)
    bench.token("b", more=1)
    assert bench.rest() == ["token a1 b1"]
