"""Logits of prompts with a picture are those of `transformers`, however the model is cut and fed."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from seeing_models import SEEING, SESSION, SeeingPipeline, SeeingRanks, make_seeing_model
from tiny_models import difference
from torch import Tensor

from potluck.engine.loading.weights import load_weights
from potluck.engine.stage import Stage
from potluck.engine.vision.encoded import EncodedPictures
from potluck.engine.vision.tower import Tower
from potluck.errors import InvalidStepError, NeedReplayError
from potluck.model.footprint import kept_picture_bytes
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.vision.spec import MOST_ROWS, TowerSpec
from potluck.wire.activation_messages import PictureRows


class WideRows:
    """Reads nothing: its pictures have as many rows of as many numbers as any model's."""

    def __init__(self, spec: TowerSpec) -> None:
        self.spec = spec

    def __call__(self, pixels: Tensor, prepare: object) -> Tensor:
        side = self.spec.patch * self.spec.merge
        return torch.empty(pixels.shape[0] * pixels.shape[1] // side**2, self.spec.row)


TAIL = torch.tensor([9, 33, 12, 50, 41], dtype=torch.int32)


@pytest.mark.parametrize("variant", SEEING)
def test_logits_are_those_of_transformers_in_chunks_cut_and_beyond_the_prompt(
    variant: str, tmp_path: Path
) -> None:
    seeing = make_seeing_model(variant, tmp_path)
    ids = torch.cat([seeing.ids, TAIL])
    theirs = seeing.logits(ids)
    config = seeing.reference.config
    has_state = any(isinstance(layer.mixer, DeltaNetSpec) for layer in config.layers)
    tolerance = 1e-4 if has_state else 1e-5
    prompt = len(seeing.ids)

    whole = SeeingPipeline(seeing).run(ids, (len(ids),))
    assert difference(whole, theirs) < tolerance

    # A picture whose rows see ahead stays in one chunk; others are cut within it.
    assert config.tower is not None
    sizes = (6, 16, 1, prompt - 23) if config.tower.facts.sees_ahead else (4, 7, 1, prompt - 12)
    cut = SeeingPipeline(seeing, (1, 2))
    assert torch.equal(cut.run(ids, (*sizes, 1, 1, 1, 1, 1)), whole)

    cut.trim(prompt - 3)  # and what follows is computed again
    again = cut.run(ids[cut.position :], (len(ids) - cut.position,))
    assert torch.equal(again, whole[-len(again) :])


@pytest.mark.parametrize("parts", [(1, 1), (2, 1)])
@pytest.mark.parametrize("variant", ["qwen 3", "gemma 3", "mistral 3"])
def test_ranks_each_read_the_picture_and_compute_what_one_stage_does(
    variant: str, parts: tuple[int, ...], tmp_path: Path
) -> None:
    seeing = make_seeing_model(variant, tmp_path)
    ids = torch.cat([seeing.ids, TAIL])

    logits = SeeingRanks(seeing, parts, (1,)).run(ids, (len(seeing.ids), 1, 4))

    assert difference(logits, seeing.logits(ids)) < 1e-4


def test_a_step_whose_picture_is_not_there_any_more_asks_for_it_again(tmp_path: Path) -> None:
    seeing = make_seeing_model("mistral 3", tmp_path)
    pipeline = SeeingPipeline(seeing)
    pipeline.stages[0]._forward_pass.pictures._rows.clear()

    with pytest.raises(NeedReplayError) as refused:
        pipeline.run(seeing.ids, (len(seeing.ids),))
    assert refused.value.data["position"] == 0

    pipeline.show()
    logits = pipeline.run(seeing.ids, (len(seeing.ids),))
    assert difference(logits, seeing.logits()) < 1e-5


def test_a_stage_without_a_tower_reads_no_picture(tmp_path: Path) -> None:
    seeing = make_seeing_model("mistral 3", tmp_path)
    picture = seeing.picture
    stage = seeing.reference.stage(1, 2)
    stage.open(SESSION, epoch=1)

    with pytest.raises(InvalidStepError, match="cannot read any"):
        stage.show(
            picture.name,
            seeing.pixels,
            mean=picture.mean,
            deviation=picture.deviation,
            epoch=1,
        )


def test_a_tower_without_layers_reads_for_a_first_stage_elsewhere(tmp_path: Path) -> None:
    seeing = make_seeing_model("qwen 3", tmp_path)
    reference, picture = seeing.reference, seeing.picture
    weights = load_weights(
        reference.config,
        range(0),
        embedding=False,
        head=False,
        tower=True,
        tensors=reference.tensors,
        scheme="f32",
        device=torch.device("cpu"),
    )
    tower = Stage(weights, context=64, cache_budget=0, epoch=1)
    tower.show(picture.name, seeing.pixels, mean=picture.mean, deviation=picture.deviation, epoch=1)
    rows = tower.rows_of(picture.name)
    pipeline = SeeingPipeline(seeing, (1, 2))
    first = pipeline.stages[0]
    own = first.rows_of(picture.name)
    assert torch.equal(rows, own)
    first._forward_pass.pictures._rows.clear()

    total = len(rows)
    for begin in range(0, total, 5):
        with pytest.raises(NeedReplayError):  # not all of them are here
            pipeline.run(seeing.ids, (len(seeing.ids),))
        some = rows[begin : begin + 5]
        first.take_rows(picture.name, some, first=begin, total=total, epoch=1)
    logits = pipeline.run(seeing.ids, (len(seeing.ids),))
    assert difference(logits, seeing.logits()) < 1e-5


def test_rows_that_are_not_of_this_model_or_not_the_next_ones_are_not_taken(tmp_path: Path) -> None:
    config = make_seeing_model("mistral 3", tmp_path).reference.config
    assert config.tower is not None
    pictures = EncodedPictures(cast("Tower", WideRows(config.tower)))
    numbers, most = config.tower.row, config.tower.rows_of_picture

    for shape, first, total in (
        ((4, numbers + 1), 0, 4),
        ((4, numbers), 0, most + 1),
        ((4, numbers), 1, 4),
        ((0, numbers), 0, 4),
    ):
        with pytest.raises(InvalidStepError):
            pictures.take("one", torch.zeros(shape), first=first, total=total)
    pictures.take("one", torch.zeros(2, numbers), first=0, total=4)
    pictures.take("one", torch.zeros(1, numbers), first=3, total=4)  # one was left out
    pictures.take("other", torch.zeros(2, numbers), first=2, total=4)  # its first ones never came
    assert not pictures.has(PictureRows(picture="one", first=0, begin=0, rows=1))
    with pytest.raises(InvalidStepError, match="no use for any"):
        EncodedPictures(None).take("one", torch.zeros(1, numbers), first=0, total=1)


def test_rows_that_come_take_no_more_than_what_is_counted_and_the_oldest_are_given_up(
    tmp_path: Path,
) -> None:
    config = make_seeing_model("qwen 3", tmp_path).reference.config
    assert config.tower is not None
    spec = replace(config.tower, out=4096)
    pictures = EncodedPictures(cast("Tower", WideRows(spec)))
    total, limit = spec.rows_of_picture, kept_picture_bytes(spec)
    some, rest = torch.zeros(1, spec.row), torch.zeros(total - 1, spec.row)
    pictures.take("kept", some, first=0, total=1)

    for name in ("one", "two", "three", "four"):
        pictures.take(name, some, first=0, total=total)
        assert pictures._nbytes <= limit
    assert pictures.has(PictureRows(picture="kept", first=0, begin=0, rows=1))
    for name in ("one", "four"):
        pictures.take(name, rest, first=1, total=total)
        assert pictures._nbytes <= limit
    assert not pictures.has(PictureRows(picture="one", first=0, begin=0, rows=1))
    assert pictures.has(PictureRows(picture="four", first=0, begin=0, rows=total))


def test_a_step_finds_the_rows_of_two_largest_pictures_and_of_small_ones(tmp_path: Path) -> None:
    config = make_seeing_model("qwen 3", tmp_path).reference.config
    assert config.tower is not None
    spec = replace(config.tower, out=4096)
    pictures, side = EncodedPictures(cast("Tower", WideRows(spec))), spec.patch * spec.merge
    large = torch.zeros(side, MOST_ROWS * side, 3, dtype=torch.uint8)
    shown = {"one": large, "small": large[:, :side], "other": large}

    for name, pixels in shown.items():
        pictures.read(name, pixels, mean=(0, 0, 0), deviation=(1, 1, 1))

    for name, pixels in shown.items():
        rows = pixels.shape[1] // side
        assert pictures.has(PictureRows(picture=name, first=0, begin=0, rows=rows)), name
