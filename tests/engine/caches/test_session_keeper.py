"""Caches are written beside the computing: whole, or not at all, and before their memory is needed."""

import errno
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_pools import FULL, PER_TOKEN, A, B, C, make_pool
from model_folders import CONFIG

from potluck.cluster.driver.computed import prefix_digests
from potluck.engine.caches import session_file
from potluck.engine.caches.disk_work import DiskWork, T, do_now
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.session_files import SessionFiles
from potluck.engine.caches.session_keeper import SessionKeeper
from potluck.engine.loading.weights import random_weights
from potluck.engine.stage import Stage
from potluck.ids import SessionId
from potluck.model.config import ModelConfig

TOKENS = 1000
CACHE_BYTES = 1024 * PER_TOKEN  # what a session of so many tokens takes


class SlowDisk:
    """Work goes on by one part each time that the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.parts = 0  # that were begun

    def __call__(self, work: DiskWork[T], done: Callable[[T | None], object]) -> None:
        def go_on(advance: Callable[[], Callable[[], Any]]) -> None:
            try:
                part = advance()
            except StopIteration as end:
                done(end.value)
            else:
                self.parts += 1
                self.waiting.append(lambda: do(part))

        def do(part: Callable[[], Any]) -> None:
            try:
                result = part()
            except OSError as failure:
                error = failure
                go_on(lambda: work.throw(error))
            else:
                go_on(lambda: work.send(result))

        go_on(lambda: next(work))

    def turn(self) -> None:
        self.waiting.popleft()()

    def finish(self) -> None:
        while self.waiting:
            self.turn()


class Bench:
    """A pool with room for so many sessions as long as the context, and a keeper with a slow disk."""

    def __init__(self, folder: Path, *, room: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session_file, "PIECE", 1 << 12)  # a cache is then many pieces
        self.folder = folder
        self.files = SessionFiles(
            folder=folder, limit=1 << 30, stage="s", disk_free=lambda _: 1 << 40
        )
        self.pool = make_pool(FULL, FULL, context=1024, budget=int(room * CACHE_BYTES))
        self.disk = SlowDisk()
        self.keeper = SessionKeeper(self.files, self.pool, self.disk)

    def begin(self, session: SessionId, *, tokens: int = TOKENS) -> SessionCache:
        """A session whose rows are random, and whose digests are told."""
        cache = self.pool.open(session)
        self.pool.reserve(session, tokens)
        cache.begin_step(0, tokens)
        for layer in cache.layers:
            layer.both.copy_(torch.rand(layer.both.shape))
        self.name(cache, session)
        return cache

    def name(self, cache: SessionCache, session: SessionId) -> None:
        cache.name(prefix_digests([ord(session)] * cache.length))
        self.keeper.look()

    def close(self, session: SessionId, cache: SessionCache) -> None:
        self.pool.close(session, keeps=self.keeper.wants(cache))
        self.keeper.look()

    def kept(self, session: SessionId) -> list[torch.Tensor] | None:
        """The rows that are on the disk of this session; None: there are none."""
        found = self.files.find(prefix_digests([ord(session)] * TOKENS), TOKENS)
        if found is None:
            return None
        pool = make_pool(FULL, FULL, context=1024)
        cache = pool.open(session)
        pool.reserve(session, found.tokens)
        assert do_now(self.files.read(found, cache))
        return rows_of(cache)

    def names(self) -> Sequence[str]:
        return [path.name for path in self.folder.glob("*")] if self.folder.exists() else []


def rows_of(cache: SessionCache) -> list[torch.Tensor]:
    return [layer.both[:, :, : 960 - layer.first].clone() for layer in cache.layers]


def same(some: list[torch.Tensor] | None, others: list[torch.Tensor]) -> bool:
    return some is not None and all(map(torch.equal, some, others))


def test_a_closed_session_is_written_in_pieces_and_then_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=4, monkeypatch=monkeypatch)
    cache = bench.begin(A)
    expected = rows_of(cache)
    bench.close(A, cache)

    bench.disk.turn()
    assert bench.pool.nbytes == CACHE_BYTES
    bench.disk.finish()

    assert bench.disk.parts > 10
    assert bench.pool.nbytes == 0
    assert same(bench.kept(A), expected)


def test_memory_that_is_needed_is_given_back_at_once_and_no_torn_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=1.5, monkeypatch=monkeypatch)
    cache = bench.begin(A)
    bench.close(A, cache)
    for _ in range(5):
        bench.disk.turn()

    bench.pool.open(B)
    assert bench.pool.reserve(B, TOKENS) == []
    bench.disk.finish()

    assert bench.pool.nbytes == CACHE_BYTES
    assert bench.names() == []


def test_a_disk_that_becomes_full_leaves_no_torn_file_and_the_memory_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=4, monkeypatch=monkeypatch)
    cache = bench.begin(A)
    bench.close(A, cache)
    for _ in range(5):
        bench.disk.turn()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(session_file.NewFile, "write", refuse)
        bench.disk.finish()

    assert bench.pool.nbytes == 0
    assert bench.names() == []


def test_two_sessions_with_the_same_tokens_are_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=4, monkeypatch=monkeypatch)
    first, second = bench.begin(A), bench.begin(B)
    second.name(first.prefix)
    expected = rows_of(first)
    bench.close(A, first)
    bench.close(B, second)
    bench.disk.finish()

    assert bench.pool.nbytes == 0
    assert len(bench.names()) == 1
    assert same(bench.kept(A), expected)


def test_a_file_that_is_cut_short_while_it_is_read_is_deleted_and_gives_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=4, monkeypatch=monkeypatch)
    cache = bench.begin(A)
    prefix = cache.prefix
    bench.close(A, cache)
    bench.disk.finish()
    (name,) = bench.names()
    came = list[bool | None]()

    def has_room(tokens: int) -> bool:
        bench.pool.reserve(B, tokens)
        with (tmp_path / name).open("r+b") as file:
            file.truncate(file.seek(0, 2) - 1)
        return True

    bench.keeper.restore(bench.pool.open(B), prefix, TOKENS, has_room, came.append)
    bench.disk.finish()

    assert came == [False]
    assert bench.names() == []


@pytest.mark.parametrize("turns", range(1, 12))
@pytest.mark.parametrize("change", ["step", "trim and step", "share", "evict"])
def test_a_session_that_changes_while_it_is_written_is_never_kept_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int, change: str
) -> None:
    bench = Bench(tmp_path, room=1.5, monkeypatch=monkeypatch)  # no room for another one
    cache = bench.begin(A)
    for _ in range(turns):
        bench.disk.turn()

    if change == "trim and step":
        cache.trim(700)
        cache.begin_step(700, 300)
        for layer in cache.layers:
            layer.both[:, :, 700:].fill_(7.0)
    elif change == "step":
        cache.begin_step(TOKENS, 1)
    elif change == "share":
        cache.share(700)
    else:
        bench.pool.open(B)
        bench.pool.reserve(B, TOKENS)
    bench.disk.finish()

    kept = bench.kept(A)
    if change == "trim and step":  # what was not taken back is then written anew
        assert kept is not None
        assert all(
            torch.equal(mine[:, :, :640], layer.both[:, :, :640])
            for mine, layer in zip(kept, cache.layers, strict=True)
        )
    else:
        assert kept is None
    assert not any(name.startswith(".") for name in bench.names())


def test_who_would_have_to_make_room_is_written_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=3.5, monkeypatch=monkeypatch)
    expected = rows_of(bench.begin(A))
    bench.begin(B)
    assert not bench.disk.parts  # there is room for a third one

    bench.begin(C)
    bench.disk.finish()
    bench.pool.open(SessionId("d"))
    assert bench.pool.reserve(SessionId("d"), TOKENS) == [A]

    assert same(bench.kept(A), expected)


def test_a_session_is_not_written_again_before_a_quarter_of_it_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=1.5, monkeypatch=monkeypatch)
    cache = bench.begin(A, tokens=600)
    bench.disk.finish()
    before = bench.disk.parts

    cache.begin_step(600, 100)
    bench.name(cache, A)
    assert bench.disk.parts == before

    bench.pool.reserve(A, TOKENS)
    cache.begin_step(700, 300)
    bench.name(cache, A)
    assert bench.disk.parts > before


def test_a_session_that_goes_on_while_it_is_written_is_tried_again_when_its_answer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=1.5, monkeypatch=monkeypatch)
    cache = bench.begin(A)
    cache.begin_step(TOKENS, 1)
    bench.disk.finish()
    assert bench.kept(A) is None

    bench.name(cache, A)
    bench.disk.finish()

    assert same(bench.kept(A), rows_of(cache))


def test_a_process_that_ends_writes_what_it_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, room=4, monkeypatch=monkeypatch)
    bench.begin(A)
    expected = rows_of(bench.begin(B))
    asked = 0

    def is_late() -> bool:
        nonlocal asked
        asked += 1
        return asked > 60  # in the middle of the second one

    bench.keeper.save(is_late)

    assert same(bench.kept(B), expected)
    assert bench.kept(A) is None
    assert len(bench.names()) == 1


class RecordingDisk:
    """The test says what becomes of the work."""

    def __init__(self) -> None:
        self.given: list[tuple[DiskWork[Any], Callable[[Any], object]]] = []

    def __call__(self, work: DiskWork[T], done: Callable[[T | None], object]) -> None:
        self.given.append((work, done))


def stage_with(disk: RecordingDisk, folder: Path) -> Stage:
    model = ModelConfig.from_dict(CONFIG)
    weights = random_weights(
        model,
        range(model.num_layers),
        embedding=True,
        head=True,
        scheme="f32",
        device=torch.device("cpu"),
    )
    files = SessionFiles(folder=folder, limit=1 << 30, stage="s", disk_free=lambda _: 1 << 40)
    return Stage(weights, context=1024, cache_budget=1 << 24, files=files, disk=disk)


def test_a_session_whose_cache_cannot_be_read_in_time_begins_with_other_memory(
    tmp_path: Path,
) -> None:
    disk, restored = RecordingDisk(), list[int]()
    stage = stage_with(disk, tmp_path)
    stage.open(A, epoch=0)
    before = stage._sessions[A].cache
    stage.restore(A, b"", 600, epoch=0, done=restored.append)
    assert restored == []

    (work, done) = disk.given[0]
    work.close()
    done(None)

    assert restored == [0]
    assert stage._sessions[A].cache is not before  # the disk may still write there
    output = stage.forward(A, torch.tensor([1, 2, 3]), epoch=0, step=1, position=0)
    assert output.position == 3


def test_a_session_that_was_closed_while_its_cache_was_read_stays_closed(tmp_path: Path) -> None:
    disk, restored = RecordingDisk(), list[int]()
    stage = stage_with(disk, tmp_path)
    stage.open(A, epoch=0)
    stage.restore(A, b"", 600, epoch=0, done=restored.append)
    stage.close(A, epoch=0)
    stage.open(A, epoch=0)
    stage.forward(A, torch.tensor([1, 2, 3]), epoch=0, step=1, position=0)

    (_, done) = disk.given[0]
    done(None)

    assert restored == [0]
    assert stage.position(A) == 3
