"""A worker that is assigned a rank's slices: it is sent these alone, or reads them out of whole tensors that it has."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_cluster import run
from fake_engine import assign
from worker_rig import Rig

from potluck.cluster.worker import worker
from potluck.cluster.worker.assignments import check_assignment, check_spares
from potluck.cluster.worker.contents import Content
from potluck.errors import BrokenModelError, IntegrityError, RemoteError
from potluck.ids import Digest
from potluck.model.shares import Share
from potluck.model.stored_slices import stage_slices, stored_slice
from potluck.store.registry import LocalModel
from potluck.store.source import TensorSource
from potluck.wire.messages import Assign, Load, TensorInfo
from potluck.wire.shares import RankShare
from potluck.wire.spare_messages import Keep

LAYERS = range(2)


class Slices:
    """A rank's assignment of the first layers, and where the bytes of its tensors are."""

    def __init__(self, model: LocalModel, rank: int = 1) -> None:
        share = Share(rank=rank, parts=(1, 1))
        parts = stage_slices(model.config, LAYERS, share, "f32")
        self.whole = assign(model, 0, 2)
        self.sources: dict[Digest, TensorSource] = dict(model.sources)
        infos = [self._cut(model, info, parts) for info in self.whole.tensors]
        self.message: Assign = msgspec.structs.replace(
            self.whole,
            tensors=tuple(infos),
            share=RankShare(rank=rank, shares=share.parts),
            epoch=2,
        )

    def _cut(self, model: LocalModel, info: TensorInfo, parts: Mapping[str, Any]) -> TensorInfo:
        part = parts.get(info.name)
        shape = tuple(info.shape)
        one = part and stored_slice(model.config, info.name, part, info.dtype, shape)
        if one is None:
            return info
        source = model.sources[Digest(info.digest)]
        cut = replace(source, nbytes=one.nbytes, runs=one.runs)
        self.sources[cut.digest()] = cut
        return msgspec.structs.replace(
            info, shape=one.shape, nbytes=one.nbytes, digest=cut.digest(), whole=info.digest
        )

    @property
    def cut(self) -> dict[str, TensorInfo]:
        return {info.digest: info for info in self.message.tensors if info.whole is not None}

    @property
    def keep(self) -> Keep:
        message = self.message
        return Keep(
            config=message.config,
            scheme=message.scheme,
            layers=tuple(LAYERS),
            embedding=message.embedding,
            head=message.head,
            tensors=message.tensors,
            share=message.share,
        )


def nbytes(message: Assign) -> int:
    return sum(info.nbytes for info in message.tensors)


async def give(computer: Any, message: Assign, sources: Mapping[Digest, TensorSource]) -> int:
    """Assign, and send what is lacking. Returns how many bytes that is."""
    need = await computer.assign(message)
    sizes = {info.digest: info.nbytes for info in message.tensors}
    if need.tensors:
        await computer.send_weights(need.tensors, sources, lambda _: None)
    return sum(sizes[tensor.digest] - tensor.offset for tensor in need.tensors)


async def load(rig: Rig, computer: Any, message: Assign) -> Mapping[str, Any]:
    """Load, as ranks do. Returns where the stage process reads each tensor."""
    await computer.load(
        message, {}, Load(epoch=message.epoch, next_hop=None, previous=None), lambda _: None
    )
    assert rig.engine.loaded is not None
    files = {file.name: file for file in rig.engine.loaded.tensors}
    for file in files.values():
        path, size = Path(file.path), file.nbytes
        source = TensorSource(path=path, offset=file.offset, nbytes=size, runs=file.runs)
        assert source.digest() == file.digest
    return files


@pytest.mark.net
def test_a_rank_is_sent_its_slices_and_a_broken_transfer_goes_on(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop, slices = (await rig.control()).computer, Slices(model)
            need = await laptop.assign(slices.message)
            assert {tensor.digest for tensor in need.tensors} == {
                info.digest for info in slices.message.tensors
            }
            one = max(slices.cut.values(), key=lambda info: info.nbytes)
            half = slices.sources[Digest(one.digest)].read(0, one.nbytes // 2)
            rig.store.append(Digest(one.digest), 0, one.nbytes, half)

            sent = await give(laptop, slices.message, slices.sources)
            assert sent == nbytes(slices.message) - len(half) < nbytes(slices.whole)
            assert rig.store.nbytes == nbytes(slices.message)
            files = await load(rig, laptop, slices.message)
            assert {file.runs for file in files.values()} == {None}
            assert {file.digest for file in files.values() if file.whole} == slices.cut.keys()

    run(main())


@pytest.mark.net
def test_a_worker_that_has_whole_tensors_is_sent_no_slice(
    tmp_path: Path, model: LocalModel
) -> None:
    """It reads its slices out of them, passes them on, and keeps them as long as they are used."""

    async def main() -> None:
        async with (
            Rig(tmp_path / "one") as rig,
            Rig(tmp_path / "two", name="Mac", desk=rig.desk) as other,
        ):
            laptop, slices = (await rig.control()).computer, Slices(model)
            await give(laptop, slices.whole, model.sources)
            assert await give(laptop, slices.message, {}) == 0
            files = await load(rig, laptop, slices.message)
            assert rig.store.nbytes == nbytes(slices.whole)
            cut = [file for file in files.values() if file.whole]
            assert all(file.runs and Path(file.path).name == file.whole for file in cut)
            wholes = {Digest(str(info.whole)) for info in slices.cut.values()}
            assert wholes <= rig.store.inventory.pinned()

            mac = (await other.control()).computer
            need = await mac.assign(slices.message)
            await mac.expect(2, rig.laptop.node_id, need.tensors)
            assert await laptop.pass_on(mac, need.tensors, timeout_s=20) == nbytes(slices.message)
            assert not (await mac.assign(slices.message)).tensors

            await laptop.unload(2)
            assert not rig.store.inventory.pinned()

    run(main())


@pytest.mark.net
@pytest.mark.usefixtures("removed_in_threads")
def test_what_cannot_be_read_out_of_a_whole_tensor_is_sent(
    tmp_path: Path, model: LocalModel
) -> None:
    """The whole tensor is damaged, or the slice is none of it."""

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop, slices = (await rig.control()).computer, Slices(model)
            await give(laptop, slices.whole, model.sources)
            assert await give(laptop, slices.message, {}) == 0
            first = next(iter(slices.cut.values()))
            rig.engine.error = IntegrityError("damaged", digest=first.digest)
            with pytest.raises(RemoteError, match="damaged"):
                await load(rig, laptop, slices.message)

            assert not rig.store.has(Digest(str(first.whole)))
            assert await give(laptop, slices.message, slices.sources) == first.nbytes
            files = await load(rig, laptop, slices.message)
            assert files[first.name].runs is None

    run(main())


@pytest.mark.net
@pytest.mark.usefixtures("removed_in_threads")
def test_a_whole_tensor_that_is_damaged_is_dropped_when_its_slice_was_passed_on(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        async with (
            Rig(tmp_path / "one") as rig,
            Rig(tmp_path / "two", name="Mac", desk=rig.desk) as other,
        ):
            laptop, slices = (await rig.control()).computer, Slices(model)
            await give(laptop, slices.whole, model.sources)
            await give(laptop, slices.message, {})
            first = next(iter(slices.cut.values()))
            path = rig.store.path(Digest(str(first.whole)))
            path.write_bytes(bytes(path.stat().st_size))

            mac = (await other.control()).computer
            need = await mac.assign(slices.message)
            await mac.expect(2, rig.laptop.node_id, need.tensors)
            with pytest.raises(RemoteError, match="arrived altered twice"):
                await laptop.pass_on(mac, need.tensors, timeout_s=20)
            assert not path.exists()

    run(main())


@pytest.mark.net
def test_a_spare_slice_in_a_whole_tensor_is_passed_on(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with (
            Rig(tmp_path / "one") as rig,
            Rig(tmp_path / "two", name="Mac", desk=rig.desk) as other,
        ):
            laptop, slices = (await rig.control()).computer, Slices(model)
            await give(laptop, slices.whole, model.sources)
            assert (await laptop.keep(slices.keep)).stored == nbytes(slices.message)

            mac = (await other.control()).computer
            need = await mac.assign(slices.message)
            await mac.expect(2, rig.laptop.node_id, need.tensors)
            assert await laptop.pass_on(mac, need.tensors, timeout_s=20) == nbytes(slices.message)

    run(main())


@pytest.mark.net
def test_a_slice_can_be_a_spare_copy(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop, slices = (await rig.control()).computer, Slices(model)
            keeping = await laptop.keep(slices.keep)
            assert len(keeping.tensors) == len(slices.message.tensors)
            await laptop.send_weights(keeping.tensors, slices.sources, lambda _: None)
            assert await give(laptop, slices.message, {}) == 0

            other = Slices(model, rank=0)
            await give(laptop, slices.whole, model.sources)
            again = await laptop.keep(other.keep)  # all of it is in the whole ones
            assert again.tensors == ()
            assert again.stored == nbytes(other.message)

    run(main())


@pytest.mark.net
def test_the_event_loop_goes_on_while_what_a_master_names_is_checked(
    tmp_path: Path, model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where heads are cut takes seconds of a config with as many as there may be."""
    threads: list[threading.Thread] = []

    def noting(check: Callable[[Any], Mapping[Digest, Content]]) -> Callable[[Any], Any]:
        def noted(message: Any) -> Any:
            threads.append(threading.current_thread())
            return check(message)

        return noted

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop, slices = (await rig.control()).computer, Slices(model)
            await laptop.keep(slices.keep)
            await laptop.assign(slices.message)

    for check in (check_assignment, check_spares):
        monkeypatch.setattr(worker, check.__name__, noting(check))
    run(main())
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_only_what_a_rank_has_a_slice_of_may_be_called_one(model: LocalModel) -> None:
    slices = Slices(model)
    good = slices.message
    contents = check_assignment(good)
    assert contents.keys() == {info.digest for info in good.tensors}
    assert {c.digest for c in contents.values() if c.part is not None} == slices.cut.keys()
    assert check_assignment(slices.whole)

    def changed(index: int, **changes: Any) -> Assign:
        tensors = list(good.tensors)
        tensors[index] = msgspec.structs.replace(tensors[index], **changes)
        return msgspec.structs.replace(good, tensors=tuple(tensors))

    cut = next(i for i, info in enumerate(good.tensors) if info.whole is not None)
    norm = next(i for i, info in enumerate(good.tensors) if info.whole is None)
    for message in (
        msgspec.structs.replace(good, share=None),
        msgspec.structs.replace(good, share=RankShare(rank=0, shares=(3, 1))),
        changed(norm, whole="ab" * 32),
        changed(cut, whole=None),
        changed(cut, nbytes=good.tensors[cut].nbytes + 4),
        changed(cut, shape=slices.whole.tensors[cut].shape),
        changed(cut, dtype="I32"),
        changed(cut, name="x"),
    ):
        with pytest.raises(BrokenModelError):
            check_assignment(message)
    with pytest.raises(BrokenModelError, match="same version"):
        check_assignment(msgspec.structs.replace(good, share=None))
