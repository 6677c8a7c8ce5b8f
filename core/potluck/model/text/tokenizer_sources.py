"""Which file of a model's folder holds its tokenizer, in whichever form programs have written it."""

from pathlib import Path

from potluck.errors import BrokenModelError

TOKENIZER = "tokenizer.json"
TEKKEN = "tekken.json"
_NAMES = (TOKENIZER, TEKKEN, "tokenizer.model", "tiktoken.model")
_PATTERNS = ("*.tiktoken", "tokenizer.model.v*")  # Qwen, Hunyuan; Mistral

KNOWN = f"{TOKENIZER}, tokenizer.model (SentencePiece or tiktoken), *.tiktoken and {TEKKEN}"
"""What can be read, for people."""


def find_tokenizer(folder: Path) -> Path | None:
    """The file with a folder's tokenizer, the one that says most; None: there is none."""
    for name in _NAMES:
        if (folder / name).is_file():
            return folder / name
    for pattern in _PATTERNS:
        # Of several versions of Mistral's, the last one.
        if found := sorted(path for path in folder.glob(pattern) if path.is_file()):
            return found[-1]
    return None


def no_tokenizer(folder: Path) -> BrokenModelError:
    """The error for a folder without any."""
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return BrokenModelError(
            f"{folder} has its tokenizer as vocab.json and merges.txt, which do not say how text is cut before its"
            " pieces are joined. Take tokenizer.json from a later version of the model's repository, or the model"
            " as GGUF.",
            file=TOKENIZER,
        )
    return BrokenModelError(
        f"{folder} has no tokenizer, without which text cannot become tokens: none of {KNOWN} is there. If the"
        " model's repository has one of them, download it into this folder; otherwise take the model as GGUF, or"
        " copy the tokenizer's files from the model that it was made from.",
        file=TOKENIZER,
    )
