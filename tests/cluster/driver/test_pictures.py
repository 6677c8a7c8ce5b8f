"""Which tokens of a prompt are rows of pictures, by what they are known, and what steps say of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from seeing_models import IMAGE_TOKEN, SeeingModel, make_seeing_model

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.driver.pictures import NO_PICTURES, ROW_IDS, PromptPictures
from potluck.errors import EngineError
from potluck.wire.activation_messages import StepPictures

GRIDS = [(2, 3), (4, 1), (1, 1)]  # lines of cells, and cells of each


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> SeeingModel:
    return make_seeing_model("qwen 3", tmp_path_factory.mktemp("qwen"))


def pictures_of(seeing: SeeingModel) -> list[Picture]:
    return [
        replace(seeing.picture, name=f"{number:064d}", rows=rows, columns=columns)
        for number, (rows, columns) in enumerate(GRIDS)
    ]


def ids_of(pictures: list[Picture]) -> list[int]:
    """Text before, between and after pictures, the last two of which stand side by side but for one token."""
    ids = [10, 11]
    for number, picture in enumerate(pictures):
        ids += [IMAGE_TOKEN] * (picture.rows * picture.columns) + [20 + number] * (2 - number % 2)
    return [*ids, 30, 31, 32]


def test_rope_counts_pictures_as_transformers_do(qwen: SeeingModel) -> None:
    pictures, tower = pictures_of(qwen), qwen.reference.config.tower
    assert tower is not None
    ids = ids_of(pictures)
    prompt = PromptPictures.of(ids, pictures, IMAGE_TOKEN, tower)
    grids = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in GRIDS])
    seen = torch.tensor([[int(token == IMAGE_TOKEN) for token in ids]])

    theirs, delta = qwen.reference.model.model.get_rope_index(
        torch.tensor([ids]), mm_token_type_ids=seen, image_grid_thw=grids
    )

    ours = np.frombuffer(prompt.of_step(0, len(ids)).places, "<i4").reshape(3, -1)
    assert ours.tolist() == theirs[:, 0].tolist()
    assert prompt.of_token(len(ids) + 5) == StepPictures(lag=-int(delta))
    begin = len(ids) - 2  # text behind all pictures
    assert prompt.of_step(begin, len(ids)) == StepPictures(lag=-int(delta))
    # The answer's first tokens in one chunk with a picture, as in a replay.
    longer = np.frombuffer(prompt.of_step(0, len(ids) + 2).places, "<i4").reshape(3, -1)
    assert longer[:, -3:].tolist() == [[ours[0, -1], ours[0, -1] + 1, ours[0, -1] + 2]] * 3


def test_rows_have_ids_by_the_content_of_their_picture(qwen: SeeingModel) -> None:
    pictures, tower = pictures_of(qwen), qwen.reference.config.tower
    assert tower is not None
    ids = ids_of(pictures)
    one = PromptPictures.of(ids, pictures, IMAGE_TOKEN, tower)
    same = PromptPictures.of(ids, pictures, IMAGE_TOKEN, tower)
    changed = [pictures[0], replace(pictures[1], name="f" * 64), pictures[2]]
    other = PromptPictures.of(ids, changed, IMAGE_TOKEN, tower)

    assert one.tokens == same.tokens
    differing = [i for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)) if a != b]
    assert differing == [10, 11, 12, 13]  # the rows of the second picture
    assert all((token >= ROW_IDS) == (ids[i] == IMAGE_TOKEN) for i, token in enumerate(one.tokens))
    assert max(one.tokens) < 1 << 31
    assert one.plain(list(one.tokens)) == ids


def test_a_step_has_the_rows_in_it_and_their_pictures_once(qwen: SeeingModel) -> None:
    pictures, tower = pictures_of(qwen), qwen.reference.config.tower
    assert tower is not None
    prompt = PromptPictures.of(ids_of(pictures), pictures, IMAGE_TOKEN, tower)

    (first, second) = prompt.of_step(5, 12).rows
    assert (first.first, first.begin, first.rows) == (3, 0, 3)
    assert (second.first, second.begin, second.rows) == (0, 5, 2)
    assert [position for position, _ in prompt.unshown(5, 12)] == [2, 10]
    assert list(prompt.unshown(5, 12)) == []
    prompt.forget_shown()
    assert [picture.name for _, picture in prompt.unshown(0, 3)] == [pictures[0].name]


def test_a_picture_whose_rows_see_ahead_is_not_cut(tmp_path: Path) -> None:
    gemma = make_seeing_model("gemma 3", tmp_path)  # 16 rows from position 6 on
    prompt = gemma.prompt()

    assert prompt.whole(0, 6) == 6
    assert prompt.whole(0, 10) == 6
    assert prompt.whole(6, 10) == 22
    assert prompt.whole(6, 30) == 30
    assert NO_PICTURES.whole(0, 10) == 10
    assert prompt.of_step(0, 6) == StepPictures()


def test_fewer_places_than_rows_are_an_error(qwen: SeeingModel) -> None:
    tower = qwen.reference.config.tower
    assert tower is not None
    with pytest.raises(EngineError, match="fewer places"):
        PromptPictures.of([1, IMAGE_TOKEN], pictures_of(qwen), IMAGE_TOKEN, tower)
