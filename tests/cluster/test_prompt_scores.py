"""Log-probabilities of a prompt's tokens: of a whole pipeline of two nodes, next to those of `transformers`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_model import make_byte_model
from fake_cluster import within
from msgspec.structs import replace
from transformers import LlamaForCausalLM
from whole_nodes import QUESTION, load, paired

from potluck.api.backend import Finished, Piece, SamplingOptions, Started, TextPrompt, TokenPrompt
from potluck.api.schema import PlanRequest
from potluck.cluster.node import Node

pytestmark = [pytest.mark.net, pytest.mark.slow]

PROMPT = tuple(32 + (7 * i) % 60 for i in range(700))  # more than one chunk; token 32 is A
SPLIT = PlanRequest(scheme="f32", layers=(("Desk", 2), ("Laptop", 4)), context=1024)
ASKED = replace(
    QUESTION,
    prompt=TokenPrompt(PROMPT),
    sampling=SamplingOptions(temperature=0.0, logprobs=2),
    max_tokens=0,
    echo=True,
)


def expected(folder: Path) -> torch.Tensor:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([PROMPT])).logits[0], -1)


async def ask(node: Node, request: Any) -> tuple[Started, list[Piece], Finished]:
    events = [event async for event in node.backend.generate(request)]
    started = next(event for event in events if isinstance(event, Started))
    pieces = [event for event in events if isinstance(event, Piece)]
    assert isinstance(events[-1], Finished)
    return started, pieces, events[-1]


def test_tokens_of_a_prompt_have_the_log_probabilities_that_transformers_gives(
    guide: Path, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model")
    wanted = expected(folder)

    async def main() -> None:
        async with paired(tmp_path) as (desk, _):
            await load(desk, replace(SPLIT, model=str(folder)))
            plain = await ask(desk, replace(ASKED, echo=False, max_tokens=8))

            started, pieces, finished = await ask(desk, ASKED)
            assert started.cached_tokens == 0  # it was answered just now, and is computed again
            assert (pieces, finished.reason, finished.completion_tokens) == ([], "length", 0)
            echo = started.echo
            assert echo is not None
            assert (echo.first, echo.text[:3]) == (b"A", "AHO")
            assert len(echo.text) == len(PROMPT)
            assert len(echo.logprobs) == len(PROMPT) - 1
            for position, token in enumerate(echo.logprobs):
                row = wanted[position]
                assert token.chosen.token_id == PROMPT[position + 1]
                logprob = pytest.approx(float(row[PROMPT[position + 1]]), abs=2e-4)
                assert token.chosen.logprob == logprob
                best = [candidate.logprob for candidate in token.best]
                assert best == pytest.approx(row.topk(2).values.tolist(), abs=2e-4)

            again, pieces, _ = await ask(desk, replace(ASKED, max_tokens=8))
            assert again.echo == echo
            assert pieces == plain[1]  # the answer has the same bits

    asyncio.run(within(90, main()))


def test_prompt_comes_without_log_probabilities_where_none_are_asked_for(
    guide: Path, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model")
    asked = replace(ASKED, prompt=TextPrompt("Hellö"), sampling=SamplingOptions(temperature=0.0))

    async def main() -> None:
        async with paired(tmp_path) as (desk, _):
            await load(desk, replace(SPLIT, model=str(folder)))
            started, _, _ = await ask(desk, asked)
            assert started.echo is not None
            assert (started.echo.text, started.echo.logprobs) == ("Hellö", ())

    asyncio.run(within(90, main()))
