"""Whose messages a stage takes, and where what follows goes. The rest is tested with real processes."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from chain_bench import Bench, FakeLink
from fake_cluster import run, until

from potluck.cluster.stage import chain
from potluck.cluster.stage.ranks import Links
from potluck.errors import NeedReplayError, OutOfMemoryError, UnknownSessionError
from potluck.ids import HomeId, NodeId
from potluck.wire.activation_messages import (
    Attach,
    Forward,
    OpenSession,
    RestoreSession,
    Result,
    TensorHeader,
)
from potluck.wire.cache_messages import CacheGivenUp, FetchCache, RankHas

STEP = Forward(
    epoch=1, session="s", step=1, position=1, tensor=TensorHeader(dtype="I32", shape=(1,))
)
RESULT = Result(epoch=1, session="s", step=1, position=2, token_id=3)


def test_results_that_are_held_go_to_the_driver_that_attaches() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.loaded.held.extend([RESULT, RESULT])
        bench.receive(link, Attach(epoch=1))
        assert link.sent == [RESULT, RESULT]
        assert not bench.loaded.held

    run(main())


def test_a_driver_that_is_gone_when_it_attaches_leaves_them_to_the_next() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.loaded.held.append(RESULT)
        bench.receive(FakeLink(is_closed=True), Attach(epoch=1))
        bench.receive(link, Attach(epoch=1))
        assert link.sent == [RESULT]

    run(main())


def test_what_a_removed_computer_had_sent_is_not_done() -> None:
    async def main() -> None:
        bench = Bench()
        bench.receive(FakeLink(is_closed=True, is_revoked=True), OpenSession(epoch=1, session="a"))
        bench.receive(FakeLink(), OpenSession(epoch=1, session="b"))
        await asyncio.sleep(0)
        assert bench.stage.opened == ["b"]

    run(main())


@pytest.mark.parametrize(
    ("previous", "link", "opened"),
    [
        (None, FakeLink(), ["a"]),
        (None, FakeLink(role="worker"), []),
        (None, FakeLink(home=HomeId("another")), []),
        ("1", FakeLink(role="worker", node="1"), ["a"]),
        ("1", FakeLink(role="worker", node="2"), []),
        ("1", FakeLink(home=HomeId("another"), node="1"), []),
    ],
    ids=["driver", "worker", "another home's driver", "neighbour", "worker apart", "of two homes"],
)
def test_steps_are_taken_of_the_one_before_and_of_nobody_else(
    previous: str | None, link: FakeLink, opened: list[str]
) -> None:
    async def main() -> None:
        bench = Bench()
        bench.loaded.previous = None if previous is None else NodeId(previous * 64)
        bench.receive(link, OpenSession(epoch=1, session="a"))
        assert bench.stage.opened == opened

    run(main())


@pytest.mark.parametrize(
    ("link", "epoch"),
    [(FakeLink(role="worker"), 1), (FakeLink(home=HomeId("another")), 1), (FakeLink(), 2)],
    ids=["a worker", "another home's master", "another plan's driver"],
)
def test_results_go_to_the_driver_of_this_plan_and_to_nobody_else(
    link: FakeLink, epoch: int
) -> None:
    async def main() -> None:
        bench = Bench()
        bench.receive(link, Attach(epoch=epoch))
        bench.receive(FakeLink(), STEP)
        assert not link.sent
        assert [result.step for result in bench.loaded.held] == [1]

    run(main())


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OutOfMemoryError("No room."), "out_of_memory", "Laptop: No room."),
        (RuntimeError("a bug"), "engine", "Laptop failed in a step; its engine.log says why."),
        (NeedReplayError("Again.", position=0), "need_replay", "Again."),
    ],
)
def test_a_step_that_fails_is_said_and_the_next_one_is_done(
    error: Exception, kind: str, message: str
) -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.receive(link, Attach(epoch=1))
        bench.stage.error = error
        bench.receive(link, STEP)
        await until(lambda: bench.failed)
        bench.stage.error = None
        bench.receive(link, STEP)

        (failed,) = bench.failed
        assert (failed.kind, failed.message) == (kind, message)
        assert failed.position == (0 if kind == "need_replay" else None)
        assert [type(sent) for sent in link.sent] == [Result]

    run(main())


@pytest.mark.parametrize(
    ("chunks", "released"),
    [
        ([(2, 5), (2, 5), (1, None)], [False, False, True]),
        ([(2, 4), (2, None)], [False, True]),
        ([(2, None)], [True]),
        ([(1, None)], [False]),
    ],
    ids=["a token is left", "two chunks", "one chunk", "nothing but a token"],
)
def test_what_a_prompt_was_computed_in_is_given_back_after_its_last_chunk(
    monkeypatch: pytest.MonkeyPatch, chunks: list[tuple[int, int | None]], released: list[bool]
) -> None:
    given_back: list[torch.device] = []
    monkeypatch.setattr(chain, "release_prompt", given_back.append)
    seen: list[bool] = []

    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.loaded.driver = cast("Any", link)
        for tokens, prompt_end in (*chunks, (1, None), (1, None)):  # and two tokens of the answer
            tensor, before = TensorHeader(dtype="I32", shape=(tokens,)), len(given_back)
            message = msgspec.structs.replace(STEP, tensor=tensor, prompt_end=prompt_end)
            bench.receive(link, message)
            seen.append(len(given_back) > before)
        assert len(link.sent) == len(seen)

    run(main())

    assert seen == [*released, False, False]


def test_the_end_of_a_prompt_is_known_though_another_one_came_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back: list[torch.device] = []
    monkeypatch.setattr(chain, "release_prompt", given_back.append)

    async def main() -> None:
        bench, link = Bench(), FakeLink()
        seen: list[int] = []
        for session, tokens, prompt_end in [
            ("a", 2, 9),
            ("b", 2, 9),
            ("a", 1, None),
            ("b", 1, None),
        ]:
            tensor = TensorHeader(dtype="I32", shape=(tokens,))
            bench.receive(
                link,
                msgspec.structs.replace(
                    STEP, session=session, tensor=tensor, prompt_end=prompt_end
                ),
            )
            seen.append(len(given_back))
        assert seen == [0, 0, 1, 2]

    run(main())


def put_together(bench: Bench, link: FakeLink, *sessions: str) -> None:
    """Have the next token of each session computed in one group."""
    for session in sessions:
        step = msgspec.structs.replace(STEP, session=session)
        bench.scheduler.put(cast("Any", link), step, memoryview(bytes(4)))
    group = bench.scheduler.next()
    assert group is not None
    bench.chain.run_group(group)
    assert not bench.scheduler.waiting


def test_tokens_of_several_sessions_are_computed_together_and_answered_in_their_order() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.receive(link, Attach(epoch=1))
        put_together(bench, link, "a", "b", "c")
        sent = [cast("Result", message) for message in link.sent]
        assert [(result.session, result.more) for result in sent] == [("a", 2), ("b", 1), ("c", 0)]
        assert not any(result.compute_ms for result in sent)
        assert bench.stage.together == [3]

    run(main())


def test_of_tokens_that_are_computed_together_one_may_fail() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.receive(link, Attach(epoch=1))
        bench.stage.failing = {"a": NeedReplayError("Again.", position=0), "c": RuntimeError("bug")}
        put_together(bench, link, "a", "b", "c", "d")
        await until(lambda: len(bench.failed) == 2)

        sent = [cast("Result", message) for message in link.sent]
        assert [(result.session, result.more) for result in sent] == [("b", 1), ("d", 0)]
        assert [(failed.session, failed.kind) for failed in bench.failed] == [
            ("a", "need_replay"),
            ("c", "engine"),
        ]

    run(main())


def test_tokens_that_fail_together_are_each_said() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.stage.error = RuntimeError("a bug")
        put_together(bench, link, "a", "b")
        await until(lambda: len(bench.failed) == 2)
        assert [failed.session for failed in bench.failed] == ["a", "b"]

    run(main())


def test_a_next_computer_that_is_gone_is_named_for_the_step_that_it_lacks() -> None:
    async def main() -> None:
        bench = Bench()
        bench.loaded.next_link = cast("Any", FakeLink(is_closed=True))
        bench.receive(FakeLink(), STEP)
        await until(lambda: bench.failed)
        assert bench.failed[0].kind == "peer_lost"
        assert bench.failed[0].message.startswith("Desk")

    run(main())


def test_the_driver_is_sent_results_and_not_what_it_said_itself() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.receive(link, Attach(epoch=1))
        bench.receive(link, OpenSession(epoch=1, session="a"))
        assert not link.sent

    run(main())


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_process_whose_gpu_is_lost_ends_and_one_that_failed_in_a_step_does_not(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    def synchronize(_: torch.device) -> None:
        if is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    async def main() -> None:
        bench = Bench()
        bench.stage.weights.device = torch.device("cuda", 0)
        bench.stage.error = RuntimeError("CUDA error: unspecified launch failure")
        bench.receive(FakeLink(), OpenSession(session="s", epoch=1))
        assert bench.deaths == int(is_lost)

    run(main())


RESTORE = RestoreSession(epoch=1, session="s", step=1, position=640, prefix=b"")


def restoring() -> tuple[Bench, FakeLink]:
    """A session of which a cache is being read from the disk, with its next step behind it."""
    bench, link = Bench(), FakeLink()
    bench.receive(link, Attach(epoch=1))
    bench.receive(link, RESTORE)
    bench.receive(link, msgspec.structs.replace(STEP, step=2))
    return bench, link


def test_a_session_waits_while_its_cache_is_read_and_the_others_go_on() -> None:
    async def main() -> None:
        bench, link = restoring()
        bench.receive(link, msgspec.structs.replace(STEP, session="other"))
        assert [message.session for message in link.sent if isinstance(message, Result)] == [
            "other"
        ]

        bench.stage.restored[0](512)
        bench.go_on()

        came = [message for message in link.sent if isinstance(message, Result)][1:]
        assert [(result.step, result.position) for result in came] == [(1, 512), (2, 2)]

    run(main())


def test_a_stage_that_was_unloaded_while_a_cache_was_read_answers_nothing() -> None:
    async def main() -> None:
        bench, link = restoring()
        bench.chain.loaded = None
        bench.stage.restored[0](512)
        assert link.sent == []

    run(main())


def test_what_the_stage_before_does_not_have_is_not_read() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.receive(link, Attach(epoch=1))
        bench.receive(link, msgspec.structs.replace(RESTORE, position=0))
        assert bench.stage.restored == []
        assert link.sent == [Result(epoch=1, session="s", step=1, position=0)]

    run(main())


def has(position: int) -> RankHas:
    return RankHas(epoch=1, session="s", step=1, position=position)


def test_rank_0_has_the_others_read_their_disks_and_goes_on_with_what_all_have() -> None:
    async def main() -> None:
        bench, link, other = Bench(), FakeLink(), FakeLink(role="worker", node="2")
        bench.loaded.rank_links = Links(sums={}, steps=(cast("Any", other),))
        bench.chain.loaded = bench.loaded
        bench.chain.ranks = cast("Any", SimpleNamespace(pass_on=other.send_nowait))
        bench.receive(link, Attach(epoch=1))
        bench.receive(link, RESTORE)
        bench.receive(link, msgspec.structs.replace(STEP, step=2, session="s"))
        assert other.sent == [RESTORE]
        bench.stage.restored[0](576)
        bench.go_on()
        assert link.sent == []  # its session waits for the other one, too
        bench.receive(other, has(512))
        came = [message for message in link.sent if isinstance(message, Result)]
        assert [(result.step, result.position) for result in came] == [(1, 512), (2, 2)]

    run(main())


def rank_1() -> tuple[Bench, FakeLink]:
    bench, rank_0 = Bench(), FakeLink(role="worker", node="1")
    bench.loaded.rank, bench.loaded.previous = 1, NodeId("1" * 64)
    bench.stage.head = None
    bench.chain.loaded = bench.loaded
    bench.scheduler.in_order = True
    return bench, rank_0


def test_another_rank_says_to_rank_0_what_it_has_read_and_that_it_cannot() -> None:
    async def main() -> None:
        bench, rank_0 = rank_1()
        bench.receive(rank_0, RESTORE)
        bench.stage.restored[0](576)
        bench.stage.error = UnknownSessionError("no")
        bench.receive(rank_0, msgspec.structs.replace(RESTORE, step=2))
        assert rank_0.sent == [has(576), msgspec.structs.replace(has(0), step=2)]
        assert not bench.failed

    run(main())


def test_who_fetches_a_cache_of_another_rank_is_answered_though_it_is_not_rank_0() -> None:
    async def main() -> None:
        bench, _ = rank_1()
        link = FakeLink(role="worker", node="3")
        bench.receive(link, FetchCache(epoch=7, session="a", transfer="t", layers=(0, 2), end=9))
        (answer,) = link.sent
        assert isinstance(answer, CacheGivenUp)

    run(main())


def test_a_session_that_cannot_be_restored_says_so_and_goes_on() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.stage.error = NeedReplayError("no")
        bench.receive(link, RESTORE)
        await until(lambda: bench.failed)
        bench.stage.error = None
        bench.receive(link, msgspec.structs.replace(STEP, step=2))
        assert bench.stage.together == [1]

    run(main())


@pytest.mark.parametrize("is_loaded", [False, True], ids=["unloaded", "another home"])
def test_who_fetches_a_cache_where_nothing_can_be_had_is_told_at_once(is_loaded: bool) -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink(role="worker", home=HomeId("another"))
        if not is_loaded:
            bench.chain.loaded = None
        fetch = FetchCache(epoch=1, session="a", transfer="t", layers=(0, 2), end=9)
        bench.receive(link, fetch)
        (answer,) = link.sent
        assert isinstance(answer, CacheGivenUp)
        assert answer.transfer == "t"

    run(main())
