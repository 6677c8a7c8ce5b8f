"""What the guide answers on this processor, as a line of JSON: `python tests/arm64/answers.py`.

For each scheme the greedy tokens of one answer, the hidden states that they come from and their log-probabilities,
the prompt in one chunk and token by token. Run on two processors, the lines can be compared bit by bit.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer

from arm64.comparing import Answer, Answers
from potluck.engine.kernels import best_kernels
from potluck.engine.loading.reading import StoredTensor
from potluck.engine.loading.weights import load_weights
from potluck.engine.stage import Stage
from potluck.ids import SessionId
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme
from potluck.store.registry import LocalModel, open_model
from potluck.wire.activation_messages import Sampling

GUIDE = Path(__file__).parents[2] / "assets" / "guide"
PROMPT = "What is a worker? And how do I add another computer to my home?"
TOKENS = 24
CASES: tuple[tuple[Scheme, Cache], ...] = (
    *((scheme, "full") for scheme in (*PACKED_SCHEMES, "f32")),
    ("int4", "int8"),
)


def main() -> None:
    """Print the answers of this processor."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as cache:
        model = open_model(GUIDE, cache_dir=Path(cache))
    prompt = Tokenizer.from_file(str(GUIDE / "tokenizer.json")).encode(PROMPT).ids
    answers: dict[str, Answer] = {}
    for scheme, kept in CASES:
        stage = _stage(model, scheme, kept)
        for way, sizes in (("in a chunk", [len(prompt)]), ("one by one", [1] * len(prompt))):
            answers[f"{scheme}, cache {kept}, {way}"] = _answer(stage, prompt, sizes)
    json.dump(Answers(path=best_kernels().name, answers=answers), sys.stdout)
    print()


def _stage(model: LocalModel, scheme: Scheme, cache: Cache) -> Stage:
    tensors = [
        StoredTensor(
            name=entry.name,
            dtype=entry.dtype,
            shape=entry.shape,
            digest=entry.digest,
            nbytes=entry.nbytes,
            path=model.sources[entry.digest].path,
            offset=model.sources[entry.digest].offset,
        )
        for entry in model.manifest.tensors
    ]
    weights = load_weights(
        model.config,
        range(model.config.num_layers),
        embedding=True,
        head=True,
        tensors=tensors,
        scheme=scheme,
        cache=cache,
        device=torch.device("cpu"),
    )
    return Stage(weights, context=256, cache_budget=1 << 26, epoch=1)


def _answer(stage: Stage, prompt: list[int], sizes: list[int]) -> Answer:
    """The answer to a prompt that comes in steps of these sizes."""
    session, position = SessionId(f"of {len(sizes)} steps"), 0
    stage.open(session, epoch=1)
    answer = Answer(ids=[], states=[], logprobs=[])
    for step, size in enumerate([*sizes, *[1] * (TOKENS - 1)]):
        end = position + size
        output = stage.forward(
            session,
            torch.tensor([*prompt, *answer["ids"]][position:end], dtype=torch.int32),
            epoch=1,
            step=step,
            position=position,
            prompt_end=len(prompt) if end <= len(prompt) else None,
            sampling=Sampling(logprobs=0, embeds=True) if end >= len(prompt) else None,
        )
        position = end
        if (choice := output.choice) is not None:
            assert choice.logprob is not None
            answer["ids"].append(choice.token_id)
            answer["states"].append(sha256(output.embedding).hexdigest()[:16])
            answer["logprobs"].append(choice.logprob.hex())
    stage.close(session, epoch=1)
    return answer


if __name__ == "__main__":
    main()
