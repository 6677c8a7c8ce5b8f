"""Text between two others, which models of code learnt to fill in: the tokens that mark what is before and after."""

from potluck.errors import PromptError
from potluck.model.text.chat import ChatFormat

_BEFORE, _AFTER = 0, 1  # places of the two texts
_FORMS: tuple[tuple[str | int, ...], ...] = (
    (
        "<|fim_prefix|>",
        _BEFORE,
        "<|fim_suffix|>",
        _AFTER,
        "<|fim_middle|>",
    ),  # Qwen-Coder, CodeGemma
    ("<fim_prefix>", _BEFORE, "<fim_suffix>", _AFTER, "<fim_middle>"),  # StarCoder, Granite
    ("<|code_prefix|>", _BEFORE, "<|code_suffix|>", _AFTER, "<|code_middle|>"),  # GLM
    ("<｜fim▁begin｜>", _BEFORE, "<｜fim▁hole｜>", _AFTER, "<｜fim▁end｜>"),  # noqa: RUF001 DeepSeek
    ("[SUFFIX]", _AFTER, "[PREFIX]", _BEFORE),  # Codestral
)


def encode_fill(chat: ChatFormat, before: str, after: str) -> list[int]:
    """The token ids after which a model writes what belongs between two texts.

    Raises:
        PromptError: the model did not learn to.
    """
    for form in _FORMS:
        marks = {part: chat.token_id(part) for part in form if isinstance(part, str)}
        if None not in marks.values():
            break
    else:
        raise PromptError(
            "This model did not learn to fill in text before another text; send a prompt without suffix."
        )
    ids = chat.encode("")
    for part in form:
        if isinstance(part, int):
            ids += chat.encode((before, after)[part], add_special=False)
        elif (mark := marks[part]) is not None:
            ids.append(mark)
    return ids
