#!/usr/bin/env python3
"""Train the guide, the tiny model that answers questions about Potluck.

    python assets/train_guide/train.py            train, about an hour on two cores; Ctrl-C pauses
    python assets/train_guide/evaluate.py         the score on questions that it was never shown

All training text is drawn from the files beside this one, by a seed. The state of an unfinished
training is kept in `build/guide`; the result is written to `assets/guide` in the Hugging Face
layout.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from corpus import Corpus, Turn, ask, draw_conversation, load_corpus
from network import Network, Shape
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "build/guide"
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|guide|>")
PAD, END, USER, GUIDE = range(4)
CHAT_TEMPLATE = (
    "{% for message in messages[-3:] %}"  # it is trained on two turns; more would confuse it
    "{% if message.role == 'user' %}<|user|>{{ message.content | trim }}<|end|>"
    "{% elif message.role == 'assistant' %}<|guide|>{{ message.content | trim }}<|end|>"
    "{% endif %}{% endfor %}"  # system messages are left out: it was not trained on any
    "{% if add_generation_prompt %}<|guide|>{% endif %}"
)
POOL = 512  # conversations drawn at once, then sorted into batches of similar length
BATCH_TOKENS = 2048
QUESTION_WEIGHT = 0.05  # of a question's tokens in the loss; the guide hardly ever writes questions
SPLIT_RATE = 0.1  # share of merges left out in questions, so that it copes with typing errors
LOST_RATE = 0.08  # share of tokens left out of some questions, so that no single token decides
EMA = 0.998
# Four tokens tell all answers apart, and the guide soon knows the rest of each by heart. So the
# last answer of most short conversations is cut to five, which halves their cost.
BRIEF = 5
BRIEF_RATE = 0.85


def train_tokenizer(corpus: Corpus, seed: int) -> Tokenizer:
    """A byte-level BPE of the guide's own text. It encodes any text, and answers in few tokens."""
    rng = random.Random(seed)
    texts = [ask(i.patterns, corpus, rng) for i in corpus.intents.values() for _ in range(300)]
    texts += [i.answer for i in corpus.intents.values() for _ in range(100)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=Shape().vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Encoder:
    """Conversations as token ids and the weight of each in the loss."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.whole = tokenizer
        self.split = Tokenizer.from_str(tokenizer.to_str())
        self.split.model.dropout = SPLIT_RATE

    def conversation(
        self, turns: Sequence[Turn], rng: random.Random
    ) -> tuple[list[int], list[float]]:
        """Token ids as the chat template makes them, and their weights."""
        ids, weights = [], []
        for question, answer in turns:
            tokenizer = self.split if rng.random() < 0.5 else self.whole
            words = tokenizer.encode(question).ids
            if len(words) > 6 and rng.random() < 0.4:
                words = [word for word in words if rng.random() > LOST_RATE]
            asked = [USER, *words, END, GUIDE]
            answered = [*self.whole.encode(answer).ids, END]
            ids += asked + answered
            weights += [QUESTION_WEIGHT] * len(asked) + [1.0] * len(answered)
        return ids, weights

    def text(self, answer: str) -> tuple[list[int], list[float]]:
        """An answer as plain text, so that a completion without a chat makes sense too."""
        ids = [*self.whole.encode(answer).ids, END]
        return ids, [1.0] * len(ids)


def batches(
    corpus: Corpus, encoder: Encoder, seed: int, pool: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one pool: ids and weights, both (B, T), padded at the end."""
    rng = random.Random(f"{seed} {pool}")
    examples: list[tuple[list[int], list[float]]] = []
    while len(examples) < POOL:
        if rng.random() < 0.03:
            examples.append(encoder.text(rng.choice([*corpus.intents.values()]).answer))
            continue
        turns = rng.choices((1, 2, rng.randint(3, 5), rng.randint(6, 14)), (78, 17, 4, 1))[0]
        ids, weights = encoder.conversation(draw_conversation(corpus, rng, turns), rng)
        limit = Shape().max_position_embeddings
        if turns < 3 and rng.random() < BRIEF_RATE:
            limit = len(ids) - ids[::-1].index(GUIDE) + BRIEF
        examples.append((ids[:limit], weights[:limit]))
    examples.sort(key=lambda example: len(example[0]))
    groups, group = [], []
    for example in examples:
        if group and (len(group) + 1) * len(example[0]) > BATCH_TOKENS:
            groups.append(group)
            group = []
        group.append(example)
    groups.append(group)
    rng.shuffle(groups)
    for group in groups:
        length = max(len(ids) for ids, _ in group)
        ids = torch.full((len(group), length), PAD)
        weights = torch.zeros(len(group), length)
        for row, (row_ids, row_weights) in enumerate(group):
            ids[row, : len(row_ids)] = torch.tensor(row_ids)
            weights[row, : len(row_ids)] = torch.tensor(row_weights)
        yield ids, weights


def loss_of(network: Network, ids: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean cross entropy of each next token."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(ids[:, :-1])
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    wanted = weights[:, 1:].flatten()
    return (losses * wanted).sum() / wanted.sum()


def learning_rate(progress: float, peak: float) -> float:
    """Warm up over 2 %, then a cosine down to 1 %."""
    if progress < 0.02:
        return peak * progress / 0.02
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - 0.02) / 0.98)))


class Training:
    """The state of a training. It can be saved and loaded."""

    def __init__(self, tokenizer: Tokenizer, *, peak: float, dropout: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.tokenizer = tokenizer
        self.network = Network(Shape(), dropout)
        self.average = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.peak, self.seed, self.pool, self.step = peak, seed, 0, 0
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.05
        )

    def run_pool(self, corpus: Corpus, encoder: Encoder, pools: int) -> float:
        """Learn from one pool; the mean loss."""
        torch.manual_seed(self.seed * 1_000_003 + self.pool)  # dropout, the same after a resume
        losses = []
        for ids, wanted in batches(corpus, encoder, self.seed, self.pool):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.pool / pools, self.peak)
            loss = loss_of(self.network, ids, wanted)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            decay = min(EMA, self.step / (self.step + 10))
            for name, weight in self.network.state_dict().items():
                self.average[name].lerp_(weight, 1 - decay)
            losses.append(loss.item())
        self.pool += 1
        return sum(losses) / len(losses)

    def save(self, path: Path) -> None:
        """Write the state to a file, completely or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "tokenizer": self.tokenizer.to_str(),
            "network": self.network.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "pool": self.pool,
            "step": self.step,
        }
        half = path.with_suffix(".part")
        torch.save(state, half)
        half.replace(path)

    def load(self, path: Path) -> None:
        """Load a state that `save` wrote. Its tokenizer is kept, even if the text has changed."""
        state = torch.load(path, weights_only=True)
        self.tokenizer = Tokenizer.from_str(state["tokenizer"])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.pool, self.step = state["average"], state["pool"], state["step"]


def write_model(folder: Path, weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write the averaged weights and the tokenizer in the Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: weight.to(torch.float16).contiguous() for name, weight in weights.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "config.json": Shape().config(END, PAD),
        "generation_config.json": {
            "do_sample": False,
            "eos_token_id": END,
            "pad_token_id": PAD,
            "max_new_tokens": 128,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": Shape().max_position_embeddings,
            "eos_token": SPECIAL[END],
            "pad_token": SPECIAL[PAD],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in described.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train, or go on with a training, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "assets/guide", help="where to write it")
    parser.add_argument(
        "--pools", type=int, default=480, help="how long: pools of 512 conversations"
    )
    parser.add_argument("--peak", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--state", type=Path, default=STATE / "state.pt")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    corpus = load_corpus()
    training = Training(
        train_tokenizer(corpus, options.seed),
        peak=options.peak,
        dropout=options.dropout,
        seed=options.seed,
    )
    print(f"{sum(p.numel() for p in training.network.parameters()):,} parameters", flush=True)
    if options.state.exists():
        training.load(options.state)
        print(f"going on after pool {training.pool}", flush=True)
    encoder = Encoder(training.tokenizer)
    begun, first = time.monotonic(), training.pool
    while training.pool < options.pools:
        loss = training.run_pool(corpus, encoder, options.pools)
        if training.pool % 10 == 0:
            rate = (time.monotonic() - begun) / (training.pool - first)
            left = rate * (options.pools - training.pool) / 60
            print(f"pool {training.pool} loss {loss:.3f}, {left:.0f} min left", flush=True)
            training.save(options.state)
            write_model(options.out, training.average, training.tokenizer)
    write_model(options.out, training.average, training.tokenizer)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
