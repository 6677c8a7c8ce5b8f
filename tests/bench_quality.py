"""What each scheme costs in quality: `python tests/bench_quality.py`. Not a test.

The guide is a model of 2.8 million parameters, trained on its own text. Measured are the perplexity
of the right answers to held-out questions, the distance of the probabilities of the next token from
those of f32 (KL divergence), and the share of held-out questions that it answers rightly. The
random model has four layers of a Llama-3.2-1B; measured is the error of its logits, relative to
their size. "bits" are those of all weights of a Llama-3.2-1B, per parameter.

    scheme          bits   guide: perplexity  divergence  right   random: error
    f32             32.00             1.023      0         84.1 %            0
    bf16            16.00             1.023      0.00000   84.1 %           1.5 %
    f16             16.00             1.023      0.00000   84.1 %           0.2 %
    int8             8.50             1.023      0.00000   84.1 %           3.4 %
    int4-offset      5.75             1.023      0.00018   84.6 %          33 %
    int4-head8       5.35             1.024      0.00022   84.1 %          35 %
    int4             4.50             1.024      0.00037   82.8 %          41 %
    int8, kv int8    8.50             1.023      0.00000   84.1 %           3.7 %
    int4, kv int8    4.50             1.024      0.00037   82.8 %          41 %

Random weights are the worst case: nothing in them is redundant, and each layer adds to the error.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "assets" / "train_guide")]

from corpus import HERE, load_corpus  # noqa: E402
from evaluate import LONGEST, MODEL, Guide, judge, perplexity, read_questions, share  # noqa: E402
from tiny_models import Pipeline, Reference, off, stored_tensors  # noqa: E402

from potluck.engine.reading import StoredTensor  # noqa: E402
from potluck.model.chat import ChatFormat  # noqa: E402
from potluck.model.config import ModelConfig  # noqa: E402
from potluck.model.schemes import Cache, Scheme  # noqa: E402
from potluck.model.tensor_formats import weight_bytes  # noqa: E402

LLAMA_1B: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 16,
    "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
TOKENS = 64  # of the random model's prompt


class SchemeGuide(Guide):
    """The guide in Potluck's engine, in one scheme."""

    def __init__(self, scheme: Scheme, cache: Cache = "full") -> None:
        config = json.loads((MODEL / "config.json").read_bytes())
        self.format = ChatFormat.load(MODEL)
        self.config = ModelConfig.from_dict(config)
        reference = Reference(None, self.config, stored_tensors(MODEL))
        self.pipeline = Pipeline(reference, scheme=scheme, cache=cache, context=1024)

    def answer(self, turns: Sequence[str]) -> str:
        messages: list[dict[str, object]] = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            answer = self._write(self.format.encode_chat(messages))
            messages.append({"role": "assistant", "content": answer})
        return str(messages[-1]["content"])

    def surprise(self, question: str, answer: str) -> tuple[float, int]:
        ids, said = self._pair(question, answer)
        likelihood = self.logits([*ids, *said])[len(ids) - 1 : -1].log_softmax(-1)
        return -likelihood[range(len(said)), said].sum().item(), len(said)

    def probabilities(self, question: str, answer: str) -> Tensor:
        """Logarithms, (T, V): of each token of an answer."""
        ids, said = self._pair(question, answer)
        return self.logits([*ids, *said])[len(ids) - 1 : -1].log_softmax(-1)

    def logits(self, ids: Sequence[int]) -> Tensor:
        self.pipeline.restart()
        return self.pipeline.run(torch.tensor(ids, dtype=torch.int32))

    def _pair(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        ids = self.format.encode_chat([{"role": "user", "content": question}])
        said = self.format.encode(answer, add_special=False)
        return ids, [*said, self.config.eos_token_ids[0]]

    def _write(self, prompt: Sequence[int]) -> str:
        logits, said = self.logits(prompt), list[int]()
        while len(said) < LONGEST:
            token = int(logits[-1].argmax())
            if token in self.format.stop_ids:
                break
            said.append(token)
            logits = self.pipeline.run(torch.tensor([token], dtype=torch.int32))
        return self.format.decode(said).strip()


def measure_guide(cases: Sequence[tuple[Scheme, Cache]]) -> None:
    """Perplexity, divergence and answers."""
    answers = load_corpus().answers
    questions = read_questions(HERE / "held_out.txt")
    pairs = [(q.turns[0], answers[q.intents[0]]) for q in questions if len(q.turns) == 1]
    exact = [SchemeGuide("f32").probabilities(*pair) for pair in pairs]
    print("scheme         perplexity  divergence  right")
    for scheme, cache in cases:
        guide = SchemeGuide(scheme, cache)
        moved = [
            F.kl_div(guide.probabilities(*pair), truth, log_target=True, reduction="none").sum(-1)
            for pair, truth in zip(pairs, exact, strict=True)
        ]
        right = share([judged.right for judged in judge(guide, questions, answers)])
        surprise = perplexity(guide, questions, answers)
        print(
            f"{scheme:12} {surprise:10.3f}  {torch.cat(moved).mean():10.5f}  {right:5.1%}",
            flush=True,
        )


def measure_random(cases: Sequence[tuple[Scheme, Cache]], folder: Path) -> None:
    """The error of a random model's logits, and the bits of a whole one."""
    whole = ModelConfig.from_dict(LLAMA_1B)
    everything = whole.stage_tensors(range(whole.num_layers), embedding=True, head=True)
    parameters = sum(math.prod(shape) for shape in everything.values())
    config = ModelConfig.from_dict({**LLAMA_1B, "num_hidden_layers": 4, "vocab_size": 4096})
    reference = Reference(None, config, random_model(config, folder))
    ids = reference.prompt(TOKENS)
    exact = Pipeline(reference).run(ids)
    print("scheme         error   bits")
    for scheme, cache in cases:
        error = off(Pipeline(reference, scheme=scheme, cache=cache).run(ids), exact)
        bits = 8 * weight_bytes(whole, everything, scheme) / parameters
        print(f"{_name(scheme, cache):14} {error:6.3%}  {bits:5.2f}", flush=True)


def random_model(config: ModelConfig, folder: Path) -> tuple[StoredTensor, ...]:
    """Weights of the size that training gives them, in a file."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    shapes = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
    save_file(
        {
            name: torch.randn(shape, generator=generator) / math.sqrt(shape[1])
            if len(shape) > 1
            else torch.ones(shape)
            for name, shape in shapes.items()
        },
        folder / "model.safetensors",
    )
    return stored_tensors(folder)


def _case(scheme: Scheme, cache: Cache = "full") -> tuple[Scheme, Cache]:
    return scheme, cache


def _name(scheme: Scheme, cache: Cache) -> str:
    return scheme if cache == "full" else f"{scheme}, kv {cache}"


def main() -> None:
    """Measure and report."""
    import tempfile

    torch.set_num_threads(1)
    schemes = cast("tuple[Scheme, ...]", get_args(Scheme))
    cases = [_case(scheme) for scheme in schemes]
    cases += [_case("int8", "int8"), _case("int4", "int8")]
    measure_guide(cases)
    with tempfile.TemporaryDirectory() as folder:
        measure_random(cases, Path(folder))


if __name__ == "__main__":
    main()
