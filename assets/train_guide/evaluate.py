#!/usr/bin/env python3
"""Ask the guide what it was never shown, and count how often it gives the right answer.

    python assets/train_guide/evaluate.py             the score, and each question that it failed
    python assets/train_guide/evaluate.py --write     the same, kept in result.json

An answer is right when the answer in the guide's text that it is most like belongs to the question's
intent, and it is nearly that answer word by word. The model runs in `transformers`, greedily.
"""

import argparse
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import HERE, load_corpus
from grammar import read_lines

MODEL = HERE.parent / "guide"
LIKENESS = 0.8  # share of common characters; with less, the answer is a mixture and counts as wrong
LONGEST = 96  # tokens of an answer; the longest one in the text has 70


@dataclass(frozen=True)
class Question:
    """A question, the turns before it, and the intents whose answers are right."""

    turns: tuple[str, ...]  # the last one is judged
    intents: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """An answer of the guide and its intent; None: it mixes several."""

    question: Question
    answer: str
    intent: str | None
    verbatim: bool

    @property
    def right(self) -> bool:
        """Whether it is an answer to the question."""
        return self.intent in self.question.intents


def read_questions(path: Path) -> list[Question]:
    """Lines `intent | question`; `a|b | …` accepts two, and ` >> ` parts the turns of a conversation."""
    found = []
    for line in read_lines(path):
        intents, _, question = line.partition(" | ")
        found.append(Question(tuple(question.split(" >> ")), tuple(intents.split("|"))))
    return found


class Guide:
    """The trained model in `transformers`."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, turns: Sequence[str]) -> str:
        """Have a conversation, and return its last answer."""
        messages: list[dict[str, str]] = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            ids = self.prompt(messages)
            with torch.inference_mode():
                out = self.model.generate(ids, max_new_tokens=LONGEST, do_sample=False)
            text = self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
            messages.append({"role": "assistant", "content": text.strip()})
        return messages[-1]["content"]

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> torch.Tensor:
        """Token ids (1, T) of a conversation, up to where the guide speaks."""
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return torch.tensor([self.tokenizer.encode(text, add_special_tokens=False)])

    def surprise(self, question: str, answer: str) -> tuple[float, int]:
        """The negative log-likelihood of an answer to a question, and its tokens."""
        ids = self.prompt([{"role": "user", "content": question}])
        said = self.tokenizer.encode(answer, add_special_tokens=False)
        said.append(self.tokenizer.eos_token_id)
        whole = torch.cat((ids, torch.tensor([said])), 1)
        with torch.inference_mode():
            likelihood = self.model(whole).logits.log_softmax(-1)
        picked = likelihood[0, ids.shape[1] - 1 : -1].gather(1, whole[0, ids.shape[1] :, None])
        return -picked.sum().item(), len(said)


def intent_of(answer: str, answers: Mapping[str, str]) -> str | None:
    """The intent whose answer this is, up to a few words; None: it mixes several."""
    for name, reference in answers.items():
        if answer == reference:
            return name
    likeness = {
        name: difflib.SequenceMatcher(None, answer, reference, autojunk=False).ratio()
        for name, reference in answers.items()
    }
    best = max(likeness, key=lambda name: likeness[name])
    return best if likeness[best] >= LIKENESS else None


def judge(guide: Guide, questions: Sequence[Question], answers: Mapping[str, str]) -> list[Judged]:
    """Ask all questions."""
    judged = []
    for question in questions:
        answer = guide.answer(question.turns)
        name = intent_of(answer, answers)
        judged.append(Judged(question, answer, name, answer in answers.values()))
    return judged


def perplexity(guide: Guide, questions: Sequence[Question], answers: Mapping[str, str]) -> float:
    """The perplexity per token of the right answers to the questions of one turn."""
    pairs = [(q.turns[0], answers[q.intents[0]]) for q in questions if len(q.turns) == 1]
    measured = [guide.surprise(question, answer) for question, answer in pairs]
    return math.exp(sum(nats for nats, _ in measured) / sum(tokens for _, tokens in measured))


def share(facts: Sequence[bool]) -> float:
    """How many of the facts are true, as a rounded fraction."""
    return round(sum(facts) / len(facts), 3)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--write", action="store_true", help="keep the result in result.json")
    parser.add_argument("--only", choices=["held_out", "develop"], help="just this list")
    parser.add_argument("--quiet", action="store_true", help="name no failed question")
    options = parser.parse_args()

    torch.set_num_threads(1)
    answers = load_corpus().answers
    guide = Guide(options.model)
    result: dict[str, object] = {"parameters": guide.model.num_parameters()}
    for name in [options.only] if options.only else ["held_out", "develop"]:
        questions = read_questions(HERE / f"{name}.txt")
        judged = judge(guide, questions, answers)
        unrelated = [j.right for j in judged if "unrelated" in j.question.intents]
        result[name] = {
            "questions": len(judged),
            "right": share([j.right for j in judged]),
            "right_about_potluck": share(
                [j.right for j in judged if "unrelated" not in j.question.intents]
            ),
            "right_unrelated": share(unrelated),
            "word_by_word": share([j.verbatim for j in judged]),
            "perplexity_of_right_answers": round(perplexity(guide, questions, answers), 2),
        }
        for j in judged:
            if not j.right and not options.quiet:
                print(f"{'|'.join(j.question.intents)}: {' >> '.join(j.question.turns)}")
                print(f"    {j.intent}: {j.answer}")
        print(name, json.dumps(result[name]))
    if options.write:
        text = json.dumps(result, indent=2) + "\n"
        (HERE / "result.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
