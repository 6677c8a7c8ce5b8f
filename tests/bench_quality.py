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
    int4-offset      5.75             1.023      0.00014   85.0 %          32 %
    int4-head8       5.45             1.023      0.00014   84.6 %          32 %
    int4             4.63             1.023      0.00025   84.6 %          37 %
    int8, kv int8    8.50             1.023      0.00000   84.1 %           3.7 %
    int4, kv int8    4.63             1.023      0.00025   84.6 %          37 %

Random weights are the worst case: nothing in them is redundant, and each layer adds to the error.

The small models are random too, of four layers; in four of them, four of each tensor's columns, channels or rows are 100
times as large as the others. Measured is the divergence from f32 over 256 positions, beside that of llama.cpp's Q4_K
(4.5 bits), of which only the weights are rounded:

    model                int8  int4-offset   int4-head8         int4        ~Q4_K
    plain              0.0006       0.0498       0.0497       0.0681       0.0740
    activation channels 0.0613       0.2429       0.2415       0.3165       0.3177
    weight columns     0.1764       0.3821       0.3695       0.4278       0.4276
    MLP rows           0.0029       0.1051       0.1045       0.1378       0.1525
    residual           0.0117       0.4573       0.4461       0.5447       0.5343

With only the weights rounded, as those of Q4_K are here, `int4` has 0.89 to 0.96 of the divergence of Q4_K.

The scales and offsets of 4 bits are those of the least squared error among a few that are tried for each group, while
weights are packed; large numbers weigh more (`engine/kernels/products/scale_search.py`). Of random groups, plain numbers in
`int4` have 0.487 % of their squares as their error (4.625 bits), 0.481 % without weights; with f16 scales and offsets
it is 0.490 % (`int4-offset`, 5 bits), in Q4_K 0.514 %, and without offsets 0.652 % (4.5 bits, what `int4` was before).
Twelve lines tried in place of six make 0.005 % less; so more are not worth the time of a load. A step for 128, 512 or all
inputs of a row in place of 256 changes little.

An importance matrix (the mean squares of each matrix's inputs, as factors of the weights of errors) was tried with only
the weights rounded: divergence in place of 1 without it, of models as above, and of the guide with answers of its own:

    model                   of 40 other answers, or 2048 tokens    squares of the norm before, no calibration
    guide                                            0.96 to 1.02                                        1.09
    plain                                            0.98 to 1.02                                        1.00
    activation channels                              0.85 to 0.91                                        0.85
    weight columns                                   0.96 to 0.99                                           -

(The least and the most of four ways to combine it with the weights of large numbers; one model of each. Where all inputs
had the same importance, 0.98 came of it: so much is noise.) It would need the
whole model's activations before the first matrix is packed, in the same bits on every computer that may pack, and packed
bytes that depend on more than their tensor. So it is left out: its gain in a trained model is within the noise.
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

from potluck.engine.loading.reading import StoredTensor  # noqa: E402
from potluck.model.config import ModelConfig  # noqa: E402
from potluck.model.schemes import Cache, Scheme  # noqa: E402
from potluck.model.tensor_formats import weight_bytes  # noqa: E402
from potluck.model.text.chat import ChatFormat  # noqa: E402

SMALL = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 4,
    "vocab_size": 4096, "tie_word_embeddings": True, "max_position_embeddings": 512,
}  # fmt: skip
POSITIONS = 256  # of the small models
SEEDS = 2  # small models of each kind: with outliers, one differs from another by a third
OUTLIERS = 4  # columns, channels or rows of each matrix that are larger than the others
FACTOR = 100.0
# Which part of which tensors is larger: those whose names end so, and along which axis.
MODELS: Mapping[str, tuple[tuple[str, ...], int] | None] = {
    "plain": None,
    "activation channels": (("layernorm.weight",), 0),
    "weight columns": (("proj.weight",), 1),
    "MLP rows": (("up_proj.weight",), 0),
    "residual": (("embed_tokens.weight",), 1),
}
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


def random_model(config: ModelConfig, folder: Path, seed: int = 0) -> tuple[StoredTensor, ...]:
    """Weights of the size that training gives them, in a file."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
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


def measure_outliers(folder: Path) -> None:
    """The divergence of small random models from f32, plain and with outliers, beside llama.cpp's Q4_K."""
    config = ModelConfig.from_dict(SMALL)
    schemes: Sequence[Scheme] = ("int8", "int4-offset", "int4-head8", "int4")
    print("model               " + "".join(f"{name:>13}" for name in (*schemes, "~Q4_K")))
    for name, outliers in MODELS.items():
        rows = [_divergences(config, outliers, schemes, folder, seed) for seed in range(SEEDS)]
        cells = torch.tensor(rows).mean(0).tolist()
        print(f"{name:20}" + "".join(f"{cell:13.4f}" for cell in cells), flush=True)


def _divergences(
    config: ModelConfig,
    outliers: tuple[tuple[str, ...], int] | None,
    schemes: Sequence[Scheme],
    folder: Path,
    seed: int,
) -> list[float]:
    """Of one random model: that of each scheme, and then of Q4_K."""
    tensors = _with_outliers(random_model(config, folder, seed), outliers, seed)
    reference = _saved(tensors, config, folder / "exact")
    ids = reference.prompt(POSITIONS)
    exact = _log_probabilities(reference, "f32", ids)
    moved = [_log_probabilities(reference, scheme, ids) for scheme in schemes]
    rounded = {key: q4_k(one) if one.dim() == 2 else one for key, one in tensors.items()}
    moved.append(_log_probabilities(_saved(rounded, config, folder / "q4_k"), "f32", ids))
    return [F.kl_div(one, exact, log_target=True, reduction="batchmean").item() for one in moved]


def q4_k(matrix: Tensor) -> Tensor:
    """What a matrix of whole super-blocks of 256 inputs is worth in llama.cpp's Q4_K.

    Each group of 32 has a scale and a minimum of 6 bits, in steps that a super-block shares. They are searched for as
    there without an importance matrix: of lines through the integers of 21 ranges, the one whose squared error,
    weighted by the size of each number, is least. (https://github.com/ggml-org/llama.cpp, `ggml-quants.c`)
    """
    groups = matrix.view(-1, 32)
    least = groups.amin(1, keepdim=True).clamp(max=0.0)
    span = groups.amax(1, keepdim=True) - least
    weights = groups.square().mean(1, keepdim=True).sqrt() + groups.abs()

    def total(numbers: Tensor) -> Tensor:
        return (weights * numbers).sum(1, keepdim=True)

    def error(q: Tensor) -> Tensor:
        return total((q * scale + low - groups).square())

    scale, low = span / 15, least
    best_scale, best_low = scale, low
    best = error(((groups - least) / scale).round().clamp(0, 15))
    for tenths in range(140, 161):
        q = ((groups - least) * (tenths / 10 / span)).round().clamp(0, 15)
        count, sums, squares = total(torch.ones_like(q)), total(q), total(q * q)
        numbers, products = total(groups), total(q * groups)
        norm = count * squares - sums * sums
        scale = (count * products - numbers * sums) / norm
        low = (squares * numbers - sums * products) / norm
        scale = torch.where(low > 0, products / squares, scale)
        low = low.clamp(max=0.0)
        is_better = (norm > 0) & (error(q) < best)
        best = torch.where(is_better, error(q), best)
        best_scale = torch.where(is_better, scale, best_scale)
        best_low = torch.where(is_better, low, best_low)
    scale, low = (_of_6_bits(one.view(-1, 8)).view(-1, 1) for one in (best_scale, -best_low))
    q = ((groups + low) / scale).nan_to_num(0.0).round().clamp(0, 15)
    return (q * scale - low).view_as(matrix)


def _of_6_bits(factors: Tensor) -> Tensor:
    """Factors of the groups of super-blocks (n, 8), as whole multiples of a step of f16."""
    step = (factors.amax(1, keepdim=True) / 63).half().float()
    return (factors / step).nan_to_num(0.0).round().clamp(0, 63) * step


def _with_outliers(
    stored: Sequence[StoredTensor], outliers: tuple[tuple[str, ...], int] | None, seed: int
) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(stored[0].path)
    generator = torch.Generator().manual_seed(1 + seed)
    ends, axis = outliers or ((), 0)
    for name, tensor in sorted(tensors.items()):
        if name.endswith(ends) and ends:
            which = torch.randperm(tensor.shape[axis], generator=generator)[:OUTLIERS]
            tensor.index_copy_(axis, which, tensor.index_select(axis, which) * FACTOR)
    return tensors


def _saved(tensors: Mapping[str, Tensor], config: ModelConfig, folder: Path) -> Reference:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors")
    return Reference(None, config, stored_tensors(folder))


def _log_probabilities(reference: Reference, scheme: Scheme, ids: Tensor) -> Tensor:
    pipeline = Pipeline(reference, scheme=scheme, context=len(ids))
    return pipeline.run(ids).log_softmax(-1)


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
        measure_outliers(Path(folder))
        measure_random(cases, Path(folder))


if __name__ == "__main__":
    main()
