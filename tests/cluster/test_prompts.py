"""What is said of a prompt: log-probabilities and embeddings of a whole pipeline, next to those of `transformers`."""

import asyncio
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_model import make_byte_model
from fake_cluster import Run
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM
from whole_nodes import QUESTION, load

from potluck.api.events import Finished, Piece, Started
from potluck.api.prompts import SamplingOptions, TextPrompt, TokenPrompt
from potluck.api.values.schema import PlanRequest
from potluck.cluster.node import Node
from potluck.errors import UsageError
from potluck.model.text.pooling import POOLING

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


def log_probabilities(folder: Path) -> torch.Tensor:
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
    desk: Node, run: Run, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model")
    wanted = log_probabilities(folder)

    async def main() -> None:
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

    run(main())


def test_prompt_comes_without_log_probabilities_where_none_are_asked_for(
    desk: Node, run: Run, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model")
    asked = replace(ASKED, prompt=TextPrompt("Hellö"), sampling=SamplingOptions(temperature=0.0))

    async def main() -> None:
        await load(desk, replace(SPLIT, model=str(folder)))
        started, _, _ = await ask(desk, asked)
        assert started.echo is not None
        assert (started.echo.text, started.echo.logprobs) == ("Hellö", ())

    run(main())


def hidden_state(model: LlamaForCausalLM, prompt: Sequence[int]) -> list[float]:
    with torch.inference_mode():
        return model.model(torch.tensor([prompt])).last_hidden_state[0, -1].tolist()


async def embedding(node: Node, prompt: Sequence[int]) -> tuple[float, ...]:
    asked = replace(
        QUESTION,
        prompt=TokenPrompt(tuple(prompt)),
        sampling=SamplingOptions(temperature=0.0),
        max_tokens=0,
        embeds=True,
    )
    started, pieces, finished = await ask(node, asked)
    assert (pieces, finished.completion_tokens) == ([], 0)
    data = started.embedding
    return struct.unpack(f"<{len(data) // 4}f", data)


def without_head(folder: Path) -> None:
    """Make the model one as for embeddings: saved without its head."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight")
    base = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(base, folder / "model.safetensors")


def pooled_by(folder: Path, mode: str) -> None:
    (folder / POOLING).parent.mkdir()
    (folder / POOLING).write_text(json.dumps({f"pooling_mode_{mode}": True}))


def test_an_embedding_is_the_hidden_state_of_the_last_token(
    desk: Node, run: Run, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = (PROMPT, (40,), PROMPT[:3], PROMPT)

    async def main() -> None:
        await load(desk, replace(SPLIT, model=str(folder)))
        found = await asyncio.gather(*(embedding(desk, prompt) for prompt in prompts))
        for prompt, vector in zip(prompts, found, strict=True):
            assert vector == pytest.approx(hidden_state(model, prompt), abs=2e-4)
        assert found[0] == found[3]

    run(main())


def test_a_model_that_was_saved_without_its_head_gives_embeddings(
    desk: Node, run: Run, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model", seed=1)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    without_head(folder)
    pooled_by(folder, "lasttoken")

    async def main() -> None:
        await load(desk, replace(SPLIT, model=str(folder)))
        vector = await embedding(desk, PROMPT[:5])
        assert vector == pytest.approx(hidden_state(model, PROMPT[:5]), abs=2e-4)

    run(main())


def test_a_model_whose_embeddings_are_a_mean_gives_none(
    desk: Node, run: Run, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "byte-model")
    pooled_by(folder, "mean_tokens")

    async def main() -> None:
        await load(desk, replace(SPLIT, model=str(folder)))
        with pytest.raises(UsageError, match="mean_tokens"):
            await embedding(desk, PROMPT[:5])

    run(main())
