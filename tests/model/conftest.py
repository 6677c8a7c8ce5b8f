"""Small tokenizers of the two great kinds, trained here, in a model's folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello there, how are you today?",
    "Grüße aus München, ça va? Привет, как дела? 你好、世界。 こんにちは 🙂🚀 1234567890",
    "system user assistant tool\n\n    indented = code(x, y)\n\ttabs and  double  spaces",
] * 3

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
SPECIAL += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def byte_level_tokenizer() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: every byte is a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return _with_bos(tokenizer)


def byte_fallback_tokenizer() -> Tokenizer:
    """As Llama 2 and Mistral: `▁` is a space, and what the vocabulary lacks is spelled in bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False, limit_alphabet=40)
    trained.train_from_iterator(CORPUS[:1] * 3, trainer)
    learned = json.loads(trained.to_str())["model"]
    pieces = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(dict.fromkeys(pieces))},
            merges=[tuple(merge) for merge in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return _with_bos(tokenizer)


def metaspace_tokenizer() -> Tokenizer:
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


TOKENIZERS = {
    "byte_level": byte_level_tokenizer,
    "byte_fallback": byte_fallback_tokenizer,
    "metaspace": metaspace_tokenizer,
}


@pytest.fixture(scope="session", params=sorted(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each kind of tokenizer in turn."""
    return TOKENIZERS[request.param]()


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return byte_fallback_tokenizer()


@pytest.fixture
def model_folder(tmp_path: Path, byte_level: Tokenizer) -> Callable[..., Path]:
    """Write a model's folder: a tokenizer, and any JSON files or texts by name."""

    def write(
        tokenizer: Tokenizer = byte_level,
        *,
        template: object = None,
        files: Mapping[str, object] | None = None,
    ) -> Path:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False},
        }
        if template is not None:
            config["chat_template"] = template
        written: dict[str, object] = {"tokenizer_config.json": config, **(files or {})}
        for name, value in written.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / name).write_text(text, encoding="utf-8")
        return folder

    return write
