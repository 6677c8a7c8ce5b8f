"""Pictures at a stage: whom its tower reads for, where the rows go, and that nothing else sees pixels."""

from typing import Any, cast

import pytest
import torch
from chain_bench import Bench, FakeLink
from fake_cluster import run, until

from potluck.cluster.stage.scheduler import Scheduler
from potluck.cluster.stage.step_watch import FIRST_S, LEAST_S, StepWatch
from potluck.engine.vision.encoded import EncodedPictures
from potluck.errors import InvalidStepError
from potluck.ids import HomeId
from potluck.wire.activation_messages import Forward, TensorHeader
from potluck.wire.messages import Message
from potluck.wire.picture_messages import (
    MAX_ROWS_BYTES,
    GiveRows,
    NotRead,
    ReadPicture,
    RowsRead,
    ShowPicture,
)

NAME = "ab" * 32
SIDE = 56
PIXELS = TensorHeader(dtype="U8", shape=(SIDE, SIDE, 3))
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
READ = ReadPicture(
    epoch=1, session="s", picture=NAME, tensor=PIXELS, mean=PLAIN[0], deviation=PLAIN[1]
)
SHOW = ShowPicture(
    epoch=1,
    session="s",
    step=1,
    position=0,
    picture=NAME,
    tensor=PIXELS,
    mean=PLAIN[0],
    deviation=PLAIN[1],
)
GIVE = GiveRows(
    epoch=1,
    session="s",
    step=1,
    position=0,
    picture=NAME,
    first=0,
    total=2,
    tensor=TensorHeader(dtype="F32", shape=(2, 4)),
)


class Seeing:
    """A stage that makes these rows of each picture, and notes what it is shown and given."""

    def __init__(self, rows: torch.Tensor | None) -> None:
        self.rows = rows
        self.shown: list[str] = []
        self.taken: list[torch.Tensor] = []
        self.weights = type("Weights", (), {"device": torch.device("cpu")})

    def show(self, picture: str, pixels: torch.Tensor, **_: Any) -> None:
        if self.rows is None:
            EncodedPictures(None).read(picture, pixels, mean=PLAIN[0], deviation=PLAIN[1])
        assert pixels.shape == (SIDE, SIDE, 3)
        self.shown.append(picture)

    def rows_of(self, picture: str) -> torch.Tensor:
        assert self.rows is not None
        return self.rows

    def take_rows(self, picture: str, rows: torch.Tensor, **_: Any) -> None:
        self.taken.append(rows)


def bench_of(rows: torch.Tensor | None) -> tuple[Bench, Seeing]:
    bench, stage = Bench(), Seeing(rows)
    bench.loaded.stage = cast("Any", stage)
    return bench, stage


def put(bench: Bench, link: FakeLink, message: Message, nbytes: int) -> None:
    bench.scheduler.put(cast("Any", link), message, memoryview(bytes(nbytes)))
    bench.go_on()


def test_rows_go_to_who_asked_in_parts_of_a_bounded_size() -> None:
    async def main() -> None:
        wide = MAX_ROWS_BYTES // 4 // 3  # three of them in a part
        bench, stage = bench_of(torch.zeros(7, wide))
        link = FakeLink()
        put(bench, link, READ, 3 * SIDE * SIDE)
        sent = [message for message in link.sent if isinstance(message, RowsRead)]
        assert [(m.first, m.total, m.tensor.shape) for m in sent] == [
            (0, 7, (3, wide)),
            (3, 7, (3, wide)),
            (6, 7, (1, wide)),
        ]
        assert stage.shown == [NAME]

    run(main())


def test_a_worker_without_a_tower_sees_no_pixels_and_says_so() -> None:
    async def main() -> None:
        bench, stage = bench_of(None)
        link = FakeLink()
        put(bench, link, READ, 3 * SIDE * SIDE)
        (said,) = link.sent
        assert isinstance(said, NotRead)
        assert (said.kind, said.picture) == (InvalidStepError.code, NAME)
        put(bench, link, SHOW, 3 * SIDE * SIDE)
        await until(lambda: bench.failed)
        assert bench.failed[0].kind == InvalidStepError.code
        assert stage.shown == []

    run(main())


@pytest.mark.parametrize(
    "link",
    [FakeLink(role="worker"), FakeLink(home=HomeId("another"))],
    ids=["worker", "other home"],
)
def test_pictures_are_read_for_the_homes_master_alone(link: FakeLink) -> None:
    async def main() -> None:
        bench, stage = bench_of(torch.zeros(2, 4))
        put(bench, link, READ, 3 * SIDE * SIDE)
        put(bench, link, SHOW, 3 * SIDE * SIDE)
        put(bench, link, GIVE, 32)
        assert link.sent == []
        assert stage.shown == []
        assert stage.taken == []

    run(main())


def test_a_stage_that_was_given_back_reads_nothing() -> None:
    async def main() -> None:
        bench, _ = bench_of(torch.zeros(2, 4))
        bench.chain.loaded = None
        link = FakeLink()
        put(bench, link, READ, 3 * SIDE * SIDE)
        assert [type(message) for message in link.sent] == [NotRead]

    run(main())


def test_who_asked_and_is_gone_ends_nothing() -> None:
    async def main() -> None:
        bench, stage = bench_of(torch.zeros(2, 4))
        put(bench, FakeLink(is_closed=True), READ, 3 * SIDE * SIDE)
        put(bench, FakeLink(), GIVE, 32)
        assert stage.taken[0].shape == (2, 4)
        assert bench.failed == []

    run(main())


def test_rows_keep_their_place_before_the_step_that_needs_them() -> None:
    scheduler, link = Scheduler(), cast("Any", FakeLink())
    chunk = Forward(
        epoch=1,
        session="s",
        step=1,
        position=0,
        tensor=TensorHeader(dtype="I32", shape=(2,)),
        prompt_end=9,
    )
    for message in (GIVE, chunk):
        scheduler.put(link, message, memoryview(b""))
    groups = [scheduler.next(), scheduler.next()]
    assert [group and group.members[0].message for group in groups] == [GIVE, chunk]
    assert [group and group.kind for group in groups] == ["rows", "chunk"]


def test_rows_that_come_quickly_do_not_hurry_the_tower() -> None:
    """They say nothing of how long this stage's own tower takes for a picture."""
    times = iter([0.0, 0.001, 1.0, 1.0 + LEAST_S + 1, 1.0 + FIRST_S + 1])
    watch = StepWatch(lambda: next(times))
    watch.begin("rows", 1)
    watch.end()
    watch.begin("picture", 1)
    assert not watch.is_stuck
    assert watch.is_stuck
