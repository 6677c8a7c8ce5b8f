"""Over two whole nodes, an answer that passes the length of the training has the tokens of `transformers`."""

from pathlib import Path

import msgspec
import pytest
import torch
from byte_model import make_byte_model
from fake_cluster import Run
from transformers import AutoModelForCausalLM
from whole_nodes import QUESTION, SPLIT, load

from potluck.api.events import Piece
from potluck.api.prompts import TextPrompt
from potluck.api.values.schema import PlanRequest
from potluck.cluster.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.net]

ORIGINAL = 16  # tokens of the training
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [float(2 + pair) for pair in range(8)],
    "original_max_position_embeddings": ORIGINAL,
}


def expected(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The greedy tokens, each computed with all tokens before it at once."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_answers_on_both_sides_of_the_limit_and_across_it(
    desk: Node, run: Run, tmp_path: Path
) -> None:
    folder = make_byte_model(tmp_path / "long")
    file = folder / "config.json"
    config = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**config, "rope_parameters": LONGROPE}))

    async def answer(text: str, count: int) -> tuple[list[int], list[int]]:
        request = msgspec.structs.replace(QUESTION, prompt=TextPrompt(text), max_tokens=count)
        prompt, tokens = list[int](), list[int]()
        async for event in desk.backend.generate(request):
            if isinstance(event, Piece):
                tokens.extend(event.token_ids)
            elif not tokens:
                prompt = list(getattr(event, "prompt_token_ids", prompt))
        return prompt, tokens

    async def main() -> None:
        for scheme in ("f32", "bf16"):
            plan = PlanRequest(model=str(folder), layers=SPLIT.layers, context=128, scheme=scheme)
            await load(desk, plan)
            for text, count in (("abc", 5), ("x" * 30, 5), ("hello", 24), ("abc", 5)):
                prompt, tokens = await answer(text, count)

                assert len(tokens) == count
                if scheme == "f32":
                    assert tokens == expected(folder, prompt, count)

    run(main())
