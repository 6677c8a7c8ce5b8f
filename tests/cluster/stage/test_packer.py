"""Several matrices at a time, each by a thread of its own."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from potluck.cluster.master.stage_tensors import tensor_info
from potluck.cluster.processes.messages import Quantise, Quantised, TensorFile
from potluck.cluster.stage.packer import Packer
from potluck.errors import InvalidConfigError
from potluck.model.formats import PACKED_DTYPES
from potluck.store.registry import LocalModel


def job(model: LocalModel, name: str, path: Path, dtype: str = "PACKED4") -> Quantise:
    (entry,) = model.manifest.stage([name])
    source = model.sources[entry.digest]
    file = TensorFile.of(tensor_info(entry), source.path, source.offset)
    return Quantise(
        config=dict(model.manifest.config),
        shape=(entry.shape[0], entry.shape[1]),
        dtype=dtype,
        parts=(file,),
        path=str(path),
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_every_answer_is_that_of_its_file(model: LocalModel, tmp_path: Path, threads: int) -> None:
    names = [e.name for e in model.manifest.tensors if len(e.shape) == 2]
    jobs = [
        job(model, name, tmp_path / f"{name} {dtype}", dtype)
        for name in names
        for dtype in PACKED_DTYPES
    ]

    async def main() -> list[Quantised]:
        quantiser = Packer(threads)
        return await asyncio.gather(*map(quantiser.answer, jobs))

    for asked, answer in zip(jobs, asyncio.run(main()), strict=True):
        data = Path(asked.path).read_bytes()
        assert answer.digest == hashlib.sha256(data).hexdigest()
        assert answer.nbytes == len(data)


def test_a_config_of_no_model_is_refused(model: LocalModel, tmp_path: Path) -> None:
    good = job(model, "lm_head.weight", tmp_path / "packed")
    bad = Quantise(
        config={"model_type": "llama"}, shape=good.shape, dtype="PACKED4", parts=good.parts,
        path=good.path,
    )  # fmt: skip

    with pytest.raises(InvalidConfigError):
        asyncio.run(Packer(1).answer(bad))
    assert not (tmp_path / "packed").exists()
