"""Caches that are written to the disk come back with the same bits, or not at all."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cache_pools import CPU, FULL, WINDOW, A, B

from potluck.cluster.driver.computed import prefix_digests
from potluck.engine.caches.cache_pool import CachePool
from potluck.engine.caches.disk_work import at_once, do_now
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.session_files import RESERVE, SessionFiles
from potluck.engine.caches.session_keeper import SessionKeeper
from potluck.ids import SessionId
from potluck.model.cache_rows import State
from potluck.model.caches import CacheSpec, RecurrentCache, RowsAndStateCache

TOKENS = list(range(1000))
STATES = RecurrentCache(row=State(shapes=((3, 4),)))
BOTH = RowsAndStateCache(row=FULL.row, tokens=FULL, state=STATES)
NO_LIMIT = 1 << 40


def files_in(
    folder: Path, *, limit: int = 1 << 30, stage: str = "layers 0 to 2", free: int = NO_LIMIT
) -> SessionFiles:
    return SessionFiles(
        folder=folder / "sessions", limit=limit, stage=stage, disk_free=lambda _: free
    )


class KeptPool(CachePool):
    """A pool whose caches are written when their sessions are closed."""

    def __init__(self, files: SessionFiles, specs: Sequence[CacheSpec], *, shares: bool) -> None:
        super().__init__(
            specs or (FULL, FULL),
            dtype=torch.float32,
            device=CPU,
            context=4096,
            budget=1 << 30,
            shares=shares,
        )
        self._keeper = SessionKeeper(files, self, at_once)

    def close(self, session: SessionId, *, keeps: bool = True) -> None:
        known = self._caches.get(session)
        super().close(session, keeps=known is not None and self._keeper.wants(known))
        self._keeper.look()


def pool_of(files: SessionFiles, *specs: CacheSpec, shares: bool = False) -> CachePool:
    return KeptPool(files, specs, shares=shares)


def fill(cache: SessionCache, end: int, *, seed: int = 0) -> None:
    """Cache tokens up to this position, with random numbers, in steps of 50."""
    generator = torch.Generator().manual_seed(seed)
    while (start := cache.length) < end:
        tokens = min(50, end - start)
        cache.begin_step(start, tokens)
        for part in (part for layer in cache.layers for part in layer.parts):
            rows = part.both
            if rows.shape[1] == 3:  # of tokens, not of states
                rows = rows[:, :, start - part.first :][:, :, :tokens]
            rows.copy_(torch.rand(rows.shape, generator=generator))


def begin(pool: CachePool, tokens: Sequence[int] = TOKENS, *, seed: int = 0) -> SessionCache:
    """A session of these tokens, with their digests."""
    cache = pool.open(A)
    pool.reserve(A, len(tokens))
    fill(cache, len(tokens), seed=seed)
    cache.name(prefix_digests(tokens))
    return cache


def restored(
    files: SessionFiles, pool: CachePool, tokens: Sequence[int], most: int | None = None
) -> SessionCache | None:
    """What the files have of these tokens."""
    most = len(tokens) if most is None else most
    if (found := files.find(prefix_digests(tokens), most)) is None:
        return None
    cache = pool.open(B)
    pool.reserve(B, found.tokens)
    return cache if do_now(files.read(found, cache)) else None


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "sessions").glob("*"))


@pytest.mark.parametrize("specs", [(FULL, FULL), (FULL, WINDOW), (FULL, STATES), (BOTH, BOTH)])
def test_a_cache_that_made_room_comes_back_with_the_same_bits(
    tmp_path: Path, specs: tuple[CacheSpec, ...]
) -> None:
    files = files_in(tmp_path)
    pool, twin = pool_of(files, *specs), pool_of(files_in(tmp_path / "none"), *specs)
    begin(pool)
    pool.close(A)
    expected = begin(twin)
    expected.trim(960)  # 15 digests of 64 tokens

    cache = restored(files, pool, [*TOKENS, 5, 6])

    assert cache is not None
    assert cache.length == expected.length > 900
    for mine, theirs in zip(cache.parts, expected.parts, strict=True):
        assert mine.held == theirs.held
        rows = cache.length - mine.first if theirs.both.shape[1] == 3 else 1
        assert torch.equal(mine.both[:, :, :rows], theirs.both[:, :, :rows])


def test_rows_that_sessions_share_are_written_with_the_others(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    pool = pool_of(files, shares=True)
    begin(pool)
    pool.open(B)
    pool.fork(B, A, 700)
    pool.close(A)

    cache = restored(files, pool, TOKENS)

    assert cache is not None
    other = begin(pool_of(files_in(tmp_path / "none")))
    assert all(
        torch.equal(mine.both[:, :, :960], theirs.both[:, :, :960])
        for mine, theirs in zip(cache.layers, other.layers, strict=True)
    )


def test_another_prompt_gets_what_it_has_in_common_with_the_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    pool = pool_of(files)
    begin(pool)
    pool.close(A)

    forked = restored(files, pool, [*TOKENS[:700], 7, 7, 7])

    assert forked is not None
    assert forked.length == 640  # whole blocks of 64
    assert restored(files, pool, TOKENS[:550]) is not None  # 512 of them
    assert restored(files, pool, [*TOKENS[:300], 7, *TOKENS]) is None  # too few
    assert restored(files, pool, TOKENS, most=500) is None


def test_a_longer_cache_takes_the_place_of_its_beginning(tmp_path: Path) -> None:
    pool = pool_of(files_in(tmp_path))
    begin(pool, TOKENS[:600])
    pool.close(A)
    (first,) = kept(tmp_path)
    begin(pool)
    pool.close(A)

    (second,) = kept(tmp_path)
    assert second != first


def test_digests_are_forgotten_with_the_tokens_that_they_name(tmp_path: Path) -> None:
    pool = pool_of(files_in(tmp_path))
    cache = begin(pool)
    cache.trim(600)
    fill(cache, 1000, seed=1)  # other tokens
    assert len(cache.prefix) == 600 // 64 * 16
    pool.close(A)

    assert restored(files_in(tmp_path), pool, TOKENS[:560]) is not None
    found = files_in(tmp_path).find(prefix_digests(TOKENS), 1000)
    assert found is not None
    assert found.shared == 576


def test_short_or_unnamed_caches_are_not_kept(tmp_path: Path) -> None:
    pool = pool_of(files_in(tmp_path))
    begin(pool, TOKENS[:511])
    pool.close(A)
    begin(pool).prefix = b""
    pool.close(A)

    assert kept(tmp_path) == []


def test_a_stage_with_other_bits_does_not_find_the_file(tmp_path: Path) -> None:
    pool = pool_of(files_in(tmp_path))
    begin(pool)
    pool.close(A)

    assert restored(files_in(tmp_path, stage="layers 0 to 3"), pool, TOKENS) is None
    assert restored(files_in(tmp_path), pool, TOKENS) is not None


def test_a_file_of_other_layers_is_refused(tmp_path: Path) -> None:
    begun = pool_of(files_in(tmp_path))
    begin(begun)
    begun.close(A)

    for specs in ((FULL,), (FULL, FULL, FULL), (FULL, WINDOW), (FULL, STATES)):
        assert (
            restored(files_in(tmp_path), pool_of(files_in(tmp_path / "none"), *specs), TOKENS)
            is None
        )
        begin(begun)
        begun.close(A)


def test_damaged_files_are_refused_and_deleted(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    pool = pool_of(files)
    rng = random.Random(0)
    begin(pool)
    pool.close(A)
    (path,) = kept(tmp_path)
    intact = path.read_bytes()
    damages = [intact[: rng.randrange(len(intact))] for _ in range(20)]
    for _ in range(40):
        at = rng.choice([rng.randrange(3000), rng.randrange(len(intact))])
        damages.append(
            intact[:at] + bytes([intact[at] ^ (1 << rng.randrange(8))]) + intact[at + 1 :]
        )
    damages.append((1 << 17).to_bytes(8, "little") + b'{"a":' + b"[" * (1 << 17))
    expected = begin(pool_of(files_in(tmp_path / "none")))

    for damaged in damages:
        path.write_bytes(damaged)
        cache = restored(files, pool, TOKENS)
        if cache is None:  # or a bit of the JSON changed that means nothing, such as a space
            continue
        for mine, theirs in zip(cache.layers, expected.layers, strict=True):
            assert torch.equal(mine.both[:, :, : cache.length], theirs.both[:, :, : cache.length])

    path.write_bytes(intact[:-1])
    assert restored(files, pool, TOKENS) is None
    assert not path.exists()
    path.write_bytes(intact)
    assert restored(files, pool, TOKENS) is not None


def test_only_the_owner_may_read_what_was_said(tmp_path: Path) -> None:
    pool = pool_of(files_in(tmp_path))
    begin(pool)
    pool.close(A)

    (path,) = kept(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_caches_used_least_recently_make_room_on_the_disk(tmp_path: Path) -> None:
    limit = 1 << 30
    for used, first in enumerate((1, 2, 3)):
        pool = pool_of(files_in(tmp_path, limit=limit))
        begin(pool, [first, *TOKENS])
        pool.close(A)
        for path in kept(tmp_path):
            limit = 5 * path.stat().st_size // 2
            if path.stat().st_mtime > 1000:
                os.utime(path, (used, used))  # the clock of the disk may be coarse

    files = files_in(tmp_path)
    assert [files.find(prefix_digests([n, *TOKENS]), 1000) is not None for n in (1, 2, 3)] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("limit", "free"), [(1000, NO_LIMIT), (1 << 30, RESERVE + 1000)], ids=["limit", "full disk"]
)
def test_a_cache_for_which_there_is_no_room_is_not_kept(
    tmp_path: Path, limit: int, free: int
) -> None:
    pool = pool_of(files_in(tmp_path, limit=limit, free=free))
    begin(pool)
    pool.close(A)

    assert kept(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file, not a folder")
    pool = pool_of(files_in(tmp_path))
    begin(pool)
    pool.close(A)

    assert pool.nbytes == 0
    assert restored(files_in(tmp_path), pool, TOKENS) is None
