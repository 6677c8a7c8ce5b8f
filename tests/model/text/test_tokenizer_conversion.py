"""Tokenizers that never had a tokenizer.json give the tokens of the libraries that they were made with."""

import base64
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from potluck.errors import BrokenModelError
from potluck.model.gguf.words import CUTS
from potluck.model.text.chat import ChatFormat
from potluck.model.text.detokenizer import BYTE_LEVEL
from potluck.model.text.tokenizer_conversion import _KIMI  # pyright: ignore[reportPrivateUsage]

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello there, how are you today?",
    "Grüße aus München, ça va? Привет, как дела? 你好、世界。 こんにちは 🙂🚀 1234567890",
    "def f(x: int) -> str:\n    return f'{x:>10}'\n\n\nclass A(B):\n\tpass  # it's they'll WE'VE",
    "the then there these that this is in it and an and a hello hallo help held",
] * 4
TEXTS = [
    *CORPUS[:4],
    "",
    " ",
    "   ",
    "a",
    "hello",
    "hello world",
    "  two spaces,   three, \t a tab\tand\n\nlines\r\n  \n end  ",
    "naïve Ångström ﬁne ①②③ ㎏ \uff46\uff55\uff4c\uff4c ½ é é ﷺ",
    "漢字かな交じり文、ไทย हिन्दी עברית العربية 한국어",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 and \u200b zero \ufeff width \x00 \x07 controls \u2028 x",
    "12345678901234567890 3.14159 1e-5 0xFF 1,000,000",
    "if (a[i] != b->c && d || !e) { x += y << 2; } // ok\n\t\treturn;\n",
    "SHOUTING MixedCase camelCaseWords snake_case_words kebab-case I'm You'RE don't",
    "a" * 40 + " " * 40 + "!" * 40,
    "\U0001d573\U0001d58a\U0001d591\U0001d591\U0001d594 \U0010ffff �",
]


# --- SentencePiece


def trained(**more: Any) -> bytes:
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "vocab_size": 500,
        "model_type": "bpe",
        "character_coverage": 0.98,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "num_threads": 1,
        "minloglevel": 2,
        **more,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, **settings
    )
    return model.getvalue()


MODELS: dict[str, dict[str, Any]] = {
    "as Llama 2 and Mistral": {"split_digits": True, "allow_whitespace_only_pieces": True},
    "as Gemma": {
        "add_dummy_prefix": False,
        "split_digits": True,
        "user_defined_symbols": ["<start_of_turn>", "<end_of_turn>", "▁▁", "▁▁▁▁", "\n\n"],
    },
    "without bytes": {"byte_fallback": False, "vocab_size": 390},
    "unigram": {"model_type": "unigram", "vocab_size": 360},
    "unigram, as T5": {
        "model_type": "unigram",
        "vocab_size": 100,
        "byte_fallback": False,
        "normalization_rule_name": "nmt_nfkc",
        "remove_extra_whitespaces": True,
    },
    "unigram, no prefix": {
        "model_type": "unigram",
        "vocab_size": 360,
        "add_dummy_prefix": False,
    },
}


@pytest.fixture(scope="module")
def models_of_sentencepiece() -> Callable[[str], bytes]:
    """Train a model once."""
    made: dict[str, bytes] = {}

    def make(name: str) -> bytes:
        if name not in made:
            made[name] = trained(**MODELS[name])
        return made[name]

    return make


def folder_of(folder: Path, files: Mapping[str, bytes | object]) -> Path:
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_sentencepiece(
    models_of_sentencepiece: Callable[[str], bytes], tmp_path: Path, name: str
) -> None:
    data = models_of_sentencepiece(name)
    original = sentencepiece.SentencePieceProcessor(model_proto=data)

    chat = ChatFormat.load(folder_of(tmp_path, {"tokenizer.model": data}))

    for text in TEXTS:
        if name == "without bytes" and not text:
            continue
        expected = original.encode(text)
        assert chat.encode(text, add_special=False) == expected, text
        assert chat.encode(text) == [original.bos_id(), *expected]
        assert chat.decode(expected) == original.decode(expected).replace("⁇", "<unk>") or (
            original.unk_id() in expected
        )


@pytest.mark.parametrize("name", ["as Llama 2 and Mistral", "as Gemma"])
def test_special_tokens_are_found_as_transformers_finds_them(
    models_of_sentencepiece: Callable[[str], bytes], tmp_path: Path, name: str
) -> None:
    data = models_of_sentencepiece(name)
    added = {
        "500": {"content": "<|im_start|>", "special": True, "normalized": False},
        "501": {"content": "<|im_end|>", "special": True, "normalized": False, "rstrip": True},
        "502": {"content": "<tool>", "special": False, "normalized": False},
    }
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_prefix_space": name != "as Gemma",
        "legacy": True,
        "added_tokens_decoder": added,
    }
    folder = folder_of(tmp_path, {"tokenizer.model": data, "tokenizer_config.json": config})

    chat = ChatFormat.load(folder)

    for text, parts in (
        ("<|im_start|>user\nhello<|im_end|> there", [500, "user\nhello", 501, "there"]),
        ("hello<tool> x</tool>", ["hello", 502, " x</tool>"]),
        ("<s>hello</s> there", [1, "hello", 2, " there"]),
    ):
        expected: list[int] = []
        original = sentencepiece.SentencePieceProcessor(model_proto=data)
        for part in parts:
            expected += [part] if isinstance(part, int) else original.encode(part)
        assert chat.encode(text, add_special=False) == expected, text
    assert chat.token_id("<|im_end|>") == 501
    assert chat.decode([500, *chat.encode("hello", add_special=False), 502]) == "hello<tool>"


def test_behind_a_special_token_a_text_goes_on_if_the_settings_say_so(
    models_of_sentencepiece: Callable[[str], bytes], tmp_path: Path
) -> None:
    data = models_of_sentencepiece("as Llama 2 and Mistral")
    original = sentencepiece.SentencePieceProcessor(model_proto=data)
    folder = folder_of(
        tmp_path,
        {
            "tokenizer.model": data,
            "tokenizer_config.json": {"legacy": False, "add_bos_token": False},
        },
    )

    ids = ChatFormat.load(folder).encode("hello</s>hello")

    first, *rest = original.encode("hello")
    assert ids[: 1 + len(rest)] == [first, *rest]
    behind = [original.id_to_piece(i) for i in ids[2 + len(rest) :]]
    assert "".join(behind) == "hello"


def test_special_tokens_need_no_settings(
    models_of_sentencepiece: Callable[[str], bytes], tmp_path: Path
) -> None:
    folder = folder_of(
        tmp_path,
        {"tokenizer.model": models_of_sentencepiece("as Gemma"), "added_tokens.json": {"<x>": 500}},
    )

    chat = ChatFormat.load(folder)

    assert chat.stop_ids == {2}
    assert chat.encode("</s><x>") == [1, 2, 500]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "neither a SentencePiece nor a tiktoken"),
        (b"\x0a\xff\xff\xff\xff\x0f", "neither a SentencePiece nor a tiktoken"),
        (bytes(64), "neither a SentencePiece nor a tiktoken"),
        (b"YQ== 0\nnonsense", "not a whole vocabulary"),
        (b"YQ== 0\nYg== 1\n", "not a whole vocabulary"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, data: bytes, what: str) -> None:
    folder = folder_of(tmp_path, {"tokenizer.model": data})

    with pytest.raises(BrokenModelError, match=rf"tokenizer\.model is {what}.*Download this file"):
        ChatFormat.load(folder)


def test_a_file_that_is_cut_off_is_damaged_or_shorter_but_never_worse(
    models_of_sentencepiece: Callable[[str], bytes], tmp_path: Path
) -> None:
    data = models_of_sentencepiece("as Gemma")
    for length in range(1, len(data), 97):
        folder_of(tmp_path, {"tokenizer.model": data[:length]})
        try:
            ChatFormat.load(tmp_path)
        except BrokenModelError as error:
            assert "tokenizer.model" in error.message  # noqa: PT017


def test_ids_that_contradict_each_other_are_an_error(
    models_of_sentencepiece: Callable[[str], bytes], tmp_path: Path
) -> None:
    files = {
        "tokenizer.model": models_of_sentencepiece("as Gemma"),
        "added_tokens.json": {"hello": 500, "</s>": 501},
    }

    with pytest.raises(BrokenModelError, match="do not belong together"):
        ChatFormat.load(folder_of(tmp_path, files))


def test_words_and_characters_are_refused(tmp_path: Path) -> None:
    data = trained(model_type="char", vocab_size=60, byte_fallback=False)

    with pytest.raises(BrokenModelError, match="by words or characters"):
        ChatFormat.load(folder_of(tmp_path, {"tokenizer.model": data}))


# --- tiktoken


def ranks(expression: str) -> dict[bytes, int]:
    """A vocabulary as tiktoken has them: bytes first, then what training joins."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    tokens = [bytes(BYTE_LEVEL[char] for char in token) for token, _ in by_id]
    singles = [bytes([byte]) for byte in range(256)]
    return {t: i for i, t in enumerate([*singles, *(t for t in tokens if len(t) > 1)])}


def as_lines(found: Mapping[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(t) + b" %d\n" % i for t, i in found.items())


@pytest.mark.parametrize(
    ("file", "kind", "expression"),
    [
        ("tiktoken.model", "TikTokenTokenizer", _KIMI),
        ("tokenizer.model", "ChatGLM4Tokenizer", CUTS["chatglm-bpe"]),
        ("glm.tiktoken", "ChatGLM4Tokenizer", CUTS["chatglm-bpe"]),
    ],
)
def test_tokens_are_those_of_tiktoken(
    tmp_path: Path, file: str, kind: str, expression: str
) -> None:
    vocabulary = ranks(expression)
    size = len(vocabulary)
    special = {"[BOS]": size, "<|im_end|>": size + 7}  # between them are ids without a token
    original = tiktoken.Encoding(
        kind, pat_str=expression, mergeable_ranks=vocabulary, special_tokens=special
    )
    config = {
        "tokenizer_class": kind,
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {str(i): {"content": text} for text, i in special.items()},
    }

    chat = ChatFormat.load(
        folder_of(tmp_path, {file: as_lines(vocabulary), "tokenizer_config.json": config})
    )

    for text in [*TEXTS, "[BOS]hello<|im_end|>漢字abc"]:
        ids = original.encode(text, allowed_special="all")
        assert chat.encode(text) == ids, text
        assert chat.decode(ids) == original.decode([i for i in ids if i < size])
    assert chat.stop_ids == {size + 7}


@pytest.mark.parametrize("names_special", [True, False])
def test_tokens_are_those_of_tekken(tmp_path: Path, names_special: bool) -> None:
    expression = CUTS["tekken"]
    vocabulary = ranks(expression)
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]"]
    content: dict[str, Any] = {
        "config": {
            "pattern": expression,
            "default_vocab_size": 30 + 600,  # fewer than the file has
            "default_num_special_tokens": 30,
            "version": "v7",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
            for t, i in vocabulary.items()
        ],
    }
    if names_special:
        content["special_tokens"] = [
            {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(special)
        ]
    first = {t: i for t, i in vocabulary.items() if i < 600}
    original = tiktoken.Encoding(
        "tekken", pat_str=expression, mergeable_ranks=first, special_tokens={}
    )

    chat = ChatFormat.load(folder_of(tmp_path, {"tekken.json": content}))

    for text in TEXTS:
        ids = original.encode(text)
        assert chat.encode(text) == [1, *(i + 30 for i in ids)], text
        assert chat.decode([i + 30 for i in ids]) == text
    assert chat.encode("[INST]a[/INST]", add_special=False) == [3, 30 + ord("a"), 4]
    assert chat.token_id("[THINK]" if names_special else "[AVAILABLE_TOOLS]") == 5
    assert chat.token_id("<SPECIAL_29>") == 29
    assert chat.stop_ids == {2}


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("vocab", []),
        ("vocab", [{"rank": 5, "token_bytes": "YQ=="}]),
        ("vocab", [{"rank": 0, "token_bytes": "%"}]),
        ("config", {}),
        ("special_tokens", [{"rank": 100, "token_str": "x"}]),
    ],
)
def test_a_broken_tekken_is_named(tmp_path: Path, change: str, value: object) -> None:
    config = {"pattern": "a", "default_vocab_size": 300, "default_num_special_tokens": 3}
    singles = [
        {"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)
    ]
    content = {"config": config, "vocab": singles, change: value}

    with pytest.raises(BrokenModelError, match=r"tekken\.json is not a whole"):
        ChatFormat.load(folder_of(tmp_path, {"tekken.json": content}))


def test_tokens_alone_do_not_say_how_text_is_cut(tmp_path: Path) -> None:
    files = {
        "qwen.tiktoken": as_lines(ranks(CUTS["qwen2"])),
        "tokenizer_config.json": {"tokenizer_class": "QWenTokenizer"},
    }

    with pytest.raises(BrokenModelError, match=r"program of its repository \(QWenTokenizer\)"):
        ChatFormat.load(folder_of(tmp_path, files))
