"""The model that the user chose, and what answers after a restart."""

import asyncio
from pathlib import Path

import pytest
from byte_model import make_byte_model
from fake_cluster import within
from whole_nodes import chat, folders_of, load, running

from potluck.api.values.schema import PlanRequest, RoleRequest
from potluck.cluster.chosen import Chosen
from potluck.errors import NotEnoughMemoryError, OutOfMemoryError, UsageError
from potluck.store.registry import LocalModel


def test_nothing_chosen_means_the_guide(tmp_path: Path) -> None:
    chosen = Chosen(tmp_path / "chosen.json", tmp_path / "guide")

    assert chosen.request == PlanRequest()
    assert chosen.served().is_guide
    assert chosen.completed(PlanRequest(context=9)) == PlanRequest(context=9)


def test_chosen_model_is_remembered_without_who_takes_part(
    tmp_path: Path, model: LocalModel
) -> None:
    asked = PlanRequest(model="random", scheme="int8", workers=2, layers=(("Desk", 4),))
    Chosen(tmp_path / "chosen.json", tmp_path / "guide").note(asked, model)

    chosen = Chosen(tmp_path / "chosen.json", tmp_path / "guide")

    assert chosen.request == PlanRequest(model=str(model.folder), scheme="int8")
    assert (chosen.served().name, chosen.served().is_guide) == ("random", False)
    assert chosen.completed(PlanRequest()) == chosen.request
    assert chosen.completed(PlanRequest(context=9)).model == str(model.folder)
    assert chosen.completed(PlanRequest(shape="llama-1b")) == PlanRequest(shape="llama-1b")


def test_model_that_could_not_be_loaded_yet_is_the_chosen_one(tmp_path: Path) -> None:
    asked = PlanRequest(model="big", scheme="int8", workers=2)
    Chosen(tmp_path / "chosen.json", tmp_path / "guide").want(asked, tmp_path / "big")

    chosen = Chosen(tmp_path / "chosen.json", tmp_path / "guide")

    assert chosen.request == PlanRequest(model=str(tmp_path / "big"), scheme="int8")
    assert (chosen.served().name, chosen.served().is_guide) == ("big", False)


def test_deleted_model_is_chosen_no_longer(tmp_path: Path, model: LocalModel) -> None:
    chosen = Chosen(tmp_path / "chosen.json", tmp_path / "guide")
    chosen.note(PlanRequest(model="random"), model)
    assert model.folder is not None

    chosen.forget(model.folder)

    assert chosen.request == PlanRequest()
    assert Chosen(tmp_path / "chosen.json", tmp_path / "guide").served().is_guide


@pytest.mark.net
@pytest.mark.slow
def test_guide_never_answers_in_place_of_the_chosen_model(guide: Path, tmp_path: Path) -> None:
    mine = make_byte_model(tmp_path / "mine")
    folders = folders_of(tmp_path, "Desk")

    async def main() -> None:
        async with running(folders) as desk:
            assert desk.backend.state().served[0].is_guide
            await load(desk, PlanRequest(model=str(mine)))
            await desk.backend.unload()
            assert [served.name for served in desk.backend.state().served] == ["mine"]
        mine.rename(tmp_path / "elsewhere")
        async with running(folders) as desk:
            assert [served.name for served in desk.backend.state().served] == ["mine"]
            with pytest.raises(UsageError, match="no model"):
                await chat(desk)
            (tmp_path / "elsewhere").rename(mine)
            await chat(desk)
            assert desk.backend.state().model.name == "mine"
            await load(desk, PlanRequest(model="guide"))
            assert desk.backend.state().served[0].is_guide
            await desk.backend.unload()
            await desk.backend.set_role(RoleRequest(memory=1))
            with pytest.raises(
                (NotEnoughMemoryError, OutOfMemoryError)
            ):  # whom the limit reached first
                await load(desk, PlanRequest(model=str(mine)))
            assert desk.backend.state().served[0].name == "mine"
            with pytest.raises(UsageError):
                await load(desk, PlanRequest(model="no such model"))
            assert desk.backend.state().served[0].name == "mine"

    asyncio.run(within(90, main()))
