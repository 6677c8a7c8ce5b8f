"""Logits of prompts with a picture are those of `transformers`, however the model is cut and fed."""

from pathlib import Path

import pytest
import torch
from seeing_models import SEEING, SESSION, SeeingPipeline, make_seeing_model
from tiny_models import difference

from potluck.errors import InvalidStepError, NeedReplayError
from potluck.model.delta_net import DeltaNetSpec

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
