"""What comes before and after is marked as each kind of model learnt it."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from potluck.errors import PromptError
from potluck.model.text.chat import ChatFormat
from potluck.model.text.fill import encode_fill


def chat_format(*marks: str) -> ChatFormat:
    """A tokenizer whose tokens are bytes, with more tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return ChatFormat(tokenizer, template=None)


@pytest.mark.parametrize(
    ("marks", "written"),
    [
        (
            ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
            "<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>",
        ),
        (
            ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
            "<fim_prefix>ab<fim_suffix>cd<fim_middle>",
        ),
        (("[PREFIX]", "[SUFFIX]"), "[SUFFIX]cd[PREFIX]ab"),
    ],
    ids=["Qwen-Coder", "StarCoder", "Codestral"],
)
def test_both_texts_are_marked(marks: tuple[str, ...], written: str) -> None:
    chat = chat_format(*marks)

    ids = encode_fill(chat, "ab", "cd")

    assert ids == chat.encode(written)
    assert len(ids) == len(marks) + 4  # each mark is one token


def test_either_text_may_be_empty() -> None:
    chat = chat_format("[PREFIX]", "[SUFFIX]")

    assert encode_fill(chat, "", "") == chat.encode("[SUFFIX][PREFIX]")


def test_a_model_without_the_marks_says_so() -> None:
    with pytest.raises(PromptError, match="did not learn to fill in"):
        encode_fill(chat_format("<|fim_prefix|>"), "a", "b")
