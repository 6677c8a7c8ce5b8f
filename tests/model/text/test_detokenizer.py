import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field
from tokenizers import Tokenizer, decoders, models

from potluck.errors import BrokenModelError
from potluck.model.text.detokenizer import Detokenizer, StopStrings, Vocabulary

TEXTS = [
    "Hello there, how are you?",
    " leading space, and   several",
    "   three spaces first",
    "Привет, как дела?",
    "你好、世界。こんにちは",
    "🙂🚀👩‍👩‍👧‍👦 a family of several code points",
    "mixed 你🙂ü\n\n\tindented\n",
    "",
    " ",
    "�",
]


def detokenizer_of(tokenizer: Tokenizer) -> Detokenizer:
    return Detokenizer(Vocabulary.of(tokenizer, json.loads(tokenizer.to_str())["decoder"]))


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def stream(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    detokenizer = detokenizer_of(tokenizer)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_the_stream_is_what_decoding_all_at_once_gives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids

    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(text=st.text())
def test_any_text_streams_as_it_decodes(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids

    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 600), max_size=40))
def test_any_tokens_stream_as_they_decode(byte_level: Tokenizer, ids: list[int]) -> None:
    assert "".join(stream(byte_level, ids)) == byte_level.decode(ids)


@given(ids=st.lists(st.integers(0, 600), max_size=40))
def test_tokens_without_bytes_stream_as_they_decode(
    byte_fallback: Tokenizer, ids: list[int]
) -> None:
    whole = [i for i in ids if not (byte_fallback.id_to_token(i) or "").startswith("<0x")]

    assert "".join(stream(byte_fallback, whole)) == byte_fallback.decode(whole)


@pytest.mark.parametrize("text", ["🙂", "你", "é", "👩‍👩‍👧‍👦"])
def test_a_character_of_several_tokens_is_never_broken(byte_fallback: Tokenizer, text: str) -> None:
    ids = byte_fallback.encode(text, add_special_tokens=False).ids
    assert len(ids) > len(text)

    pieces = stream(byte_fallback, ids)

    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte(byte_level: Tokenizer) -> None:
    ids = [id_of(byte_level, char) for char in "ðŁĻĤ"]  # the four bytes of 🙂

    assert stream(byte_level, ids) == ["", "", "", "🙂", ""]


def test_what_was_never_completed_is_one_replacement_character(byte_level: Tokenizer) -> None:
    ids = [id_of(byte_level, char) for char in "ðŁ"]

    assert stream(byte_level, ids) == ["", "", "�"]


def test_bytes_that_are_no_text_do_not_hold_the_stream_up(byte_fallback: Tokenizer) -> None:
    bad = id_of(byte_fallback, "<0xFF>")

    pieces = stream(byte_fallback, [bad] * 100)

    assert pieces == ["�"] * 100 + [""]


def test_good_characters_stay_when_bad_bytes_follow(byte_fallback: Tokenizer) -> None:
    ids = [id_of(byte_fallback, f"<0x{byte:02X}>") for byte in "é".encode() + b"\xff"]

    assert "".join(stream(byte_fallback, ids)) == "é�"


def test_special_tokens_are_left_out_and_do_not_disturb_spaces(byte_fallback: Tokenizer) -> None:
    hello = byte_fallback.encode("Hello", add_special_tokens=False).ids
    eos = id_of(byte_fallback, "</s>")

    text = "".join(stream(byte_fallback, [eos, *hello, eos, *hello]))

    assert text == byte_fallback.decode([eos, *hello, eos, *hello]) == "Hello Hello"


def test_a_text_that_goes_on_keeps_the_space_between_words(byte_fallback: Tokenizer) -> None:
    hello = byte_fallback.encode("Hello", add_special_tokens=False).ids
    vocabulary = Vocabulary.of(byte_fallback, json.loads(byte_fallback.to_str())["decoder"])
    detokenizer = Detokenizer(vocabulary, begins=False)

    text = "".join([*map(detokenizer.push, hello), detokenizer.flush()])

    assert f"Hello{text}" == byte_fallback.decode([*hello, *hello]) == "Hello Hello"


def test_ids_that_name_no_token_are_left_out(tokenizer: Tokenizer) -> None:
    assert stream(tokenizer, [10**6, -1]) == ["", "", ""]


def test_added_tokens_that_are_not_special_are_shown(byte_level: Tokenizer) -> None:
    assert "".join(stream(byte_level, [id_of(byte_level, "<think>")])) == "<think>"


def test_words_without_a_decoder_have_spaces_between_them() -> None:
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1, "?": 2}, unk_token="?"))

    assert "".join(stream(tokenizer, [0, 1, 0])) == tokenizer.decode([0, 1, 0]) == "one two one"


def test_an_unknown_decoder_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()

    with pytest.raises(BrokenModelError, match="WordPiece"):
        detokenizer_of(tokenizer)


def test_a_token_that_would_grow_to_megabytes_is_a_broken_file() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a" * 100: 0}, unk_token="a"))
    doubling = [decoders.Replace("a", "aa") for _ in range(40)]
    tokenizer.decoder = decoders.Sequence(doubling)

    with pytest.raises(BrokenModelError, match="no vocabulary"):
        detokenizer_of(tokenizer)


class CountedTokens(Vocabulary, frozen=True, kw_only=True):
    """Notes each token that it is asked for."""

    asked: list[int] = field(default_factory=list)

    def shown(self, token_id: int, *, first: bool = False) -> bytes | None:
        self.asked.append(token_id)
        return super().shown(token_id, first=first)


def test_each_token_of_a_long_answer_is_looked_at_once(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("The quick brown fox. ").ids * 100
    tokens = CountedTokens.of(byte_level, json.loads(byte_level.to_str())["decoder"])
    detokenizer = Detokenizer(tokens)

    text = "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    assert text == "The quick brown fox. " * 100
    assert tokens.asked == ids


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    pieces: list[str] = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


def until_stop(stops: Sequence[str], pieces: Iterable[str]) -> tuple[str, str | None]:
    watch = StopStrings(stops)
    text = "".join(watch.push(piece) for piece in pieces)
    return text + watch.flush(), watch.hit


def test_the_text_ends_before_the_stop_string() -> None:
    assert until_stop(["\nUser:"], ["Hi there", "\nUs", "er: what"]) == ("Hi there", "\nUser:")


def test_what_only_looked_like_a_stop_string_is_given_back() -> None:
    assert until_stop(["<end>"], ["a <", "en", "d", " b"]) == ("a <end b", None)


def test_nothing_is_held_back_that_cannot_become_a_stop_string() -> None:
    watch = StopStrings(["xyz"])

    assert watch.push("hello") == "hello"
    assert watch.push("x") == ""
    assert watch.push("a") == "xa"


def test_nothing_comes_after_a_hit() -> None:
    watch = StopStrings(["."])

    assert watch.push("One. Two.") == "One"
    assert watch.push(" Three") == watch.flush() == ""
    assert watch.hit == "."


def test_without_stop_strings_all_text_passes_at_once() -> None:
    watch = StopStrings(["", ""])

    assert watch.push("text") == "text"
    assert watch.hit is None


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(0, 5), max_size=10),
)
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    expected = until_stop(stops, list(text))

    assert until_stop(stops, cut(text, sizes)) == expected
    assert text.startswith(expected[0])
    assert all(stop not in expected[0] for stop in stops)
