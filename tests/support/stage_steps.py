"""Steps of one session on a stage."""

import torch
from tiny_models import SESSION

from potluck.engine.stage import Output, Stage
from potluck.ids import SessionId
from potluck.wire.activation_messages import Sampling

GREEDY = Sampling(logprobs=5)
OTHER = SessionId("other")


def forward(
    stage: Stage,
    ids: torch.Tensor,
    position: int,
    *,
    step: int | None = None,
    session: SessionId = SESSION,
    prompt_end: int | None = None,
    sampling: Sampling | None = GREEDY,
) -> Output:
    return stage.forward(
        session,
        ids,
        epoch=1,
        step=position if step is None else step,
        position=position,
        prompt_end=prompt_end,
        sampling=sampling,
    )
