"""Tensors that a master has a worker keep without a stage, over real TLS on loopback."""

from pathlib import Path

import msgspec
import pytest
from fake_cluster import run, until
from fake_engine import assign
from worker_rig import Rig

from potluck.errors import RemoteError
from potluck.ids import Digest
from potluck.store.registry import LocalModel
from potluck.wire.spare_messages import Keep

pytestmark = pytest.mark.net


def keep(model: LocalModel) -> Keep:
    message = assign(model, 0, 2)
    return Keep(
        config=message.config,
        scheme=message.scheme,
        layers=tuple(range(*message.layers)),
        embedding=message.embedding,
        head=message.head,
        tensors=message.tensors,
    )


def test_what_is_kept_is_not_sent_when_a_stage_needs_it(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            message = keep(model)
            keeping = await laptop.keep(message)
            assert {tensor.digest for tensor in keeping.tensors} == {
                info.digest for info in message.tensors
            }
            await laptop.send_weights(keeping.tensors, model.sources, lambda _: None)

            again = await laptop.keep(message)
            assert again.tensors == ()
            assert again.stored == sum(info.nbytes for info in message.tensors)
            digests = {Digest(info.digest) for info in message.tensors}
            await until(lambda: set(rig.store.inventory.unused()) == digests)  # after the last byte
            assert rig.worker.lease is None
            assert not (await laptop.assign(assign(model, 0, 2))).tensors
            assert rig.store.inventory.unused() == []

    run(main())


def test_keeping_more_leaves_the_stage_as_it_is(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            need = await laptop.assign(assign(model, 0, 1))
            await laptop.send_weights(need.tensors, model.sources, lambda _: None)
            lease = rig.worker.lease

            keeping = await laptop.keep(keep(model))
            await laptop.send_weights(keeping.tensors, model.sources, lambda _: None)

            assert rig.worker.lease is lease
            assert not (await laptop.keep(keep(model))).tensors

    run(main())


def test_only_the_tensors_of_these_layers_are_kept(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            message = keep(model)
            for wrong in (
                msgspec.structs.replace(message, tensors=message.tensors[1:]),
                msgspec.structs.replace(message, layers=(0,)),
                msgspec.structs.replace(message, layers=(0, 999)),
            ):
                with pytest.raises(RemoteError):
                    await laptop.keep(wrong)
            assert rig.store.nbytes == 0

    run(main())


def test_a_computer_that_is_paused_keeps_nothing(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            rig.worker.is_paused = True
            with pytest.raises(RemoteError, match="paused"):
                await laptop.keep(keep(model))

    run(main())
