"""The events of a generation as chunks and whole answers, without a server."""

import msgspec
import pytest

from potluck.api.events import Candidate, ChosenToken, Finished, Piece, Started
from potluck.api.v1.answers import Answer, ChatFormat, Format, TextFormat, usage_of
from potluck.api.values.timings import Timings

STARTED = Started(prompt_token_ids=(1, 2, 3), cached_tokens=2)
TIMINGS = Timings(time_to_first_token_s=0.1, tokens_per_s=20.0, hop_ms=0.5, stages=())
FINISHED = Finished(reason="stop", completion_tokens=2, timings=TIMINGS)


def token(text: bytes, logprob: float = -0.5) -> ChosenToken:
    chosen = Candidate(token_id=1, token=text, logprob=logprob)
    return ChosenToken(
        chosen=chosen, best=(chosen, Candidate(token_id=2, token=b"no", logprob=-3.0))
    )


PIECES = (
    Piece(text="Hé", token_ids=(7,), logprobs=(token("Hé".encode()),)),
    Piece(text="", token_ids=(8,), logprobs=(token(b"\xe2\x82"),)),
)


def answer(*, token_ids: bool = False, logprobs: int | None = None) -> Answer:
    return Answer(id="x-1", created=5, model="guide", token_ids=token_ids, logprobs=logprobs)


def streamed(form: Format, *, usage: bool = False) -> list[dict]:
    chunks = [*form.first(STARTED)]
    for piece in PIECES:
        chunks += form.piece(piece)
    chunks += form.last(FINISHED, usage)
    if usage:
        chunks.append(form.usage(usage_of(STARTED, FINISHED), FINISHED))
    return [msgspec.to_builtins(chunk) for chunk in chunks]


@pytest.mark.parametrize("kind", [ChatFormat, TextFormat])
def test_every_chunk_carries_the_same_id_time_and_model(kind: type[Format]) -> None:
    for chunk in streamed(kind(answer()), usage=True):
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("x-1", 5, "guide")


def test_a_chat_begins_with_the_role_and_ends_with_the_reason() -> None:
    first, *_, last = streamed(ChatFormat(answer()))

    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("kind", [ChatFormat, TextFormat])
def test_text_that_is_held_back_is_a_chunk_only_for_who_asked_for_its_token(
    kind: type[Format],
) -> None:
    plain = streamed(kind(answer()))
    with_ids = streamed(kind(answer(token_ids=True)))
    with_logprobs = streamed(kind(answer(logprobs=1)))

    assert len(with_logprobs) == len(plain) + 1
    assert [c["token_ids"] for chunk in with_ids for c in chunk["choices"] if "token_ids" in c] == [
        [7],
        [8],
    ]


@pytest.mark.parametrize("kind", [ChatFormat, TextFormat])
def test_usage_is_a_chunk_of_its_own_where_it_is_wanted(kind: type[Format]) -> None:
    without, wanted = streamed(kind(answer())), streamed(kind(answer()), usage=True)

    assert all(chunk.get("usage") is None for chunk in without)
    assert wanted[-1]["choices"] in ([], ())
    assert wanted[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize("kind", [ChatFormat, TextFormat])
def test_what_is_streamed_is_what_comes_whole(kind: type[Format]) -> None:
    whole = msgspec.to_builtins(kind(answer()).whole(STARTED, PIECES, FINISHED))
    choice = whole["choices"][0]
    text = choice["text"] if kind is TextFormat else choice["message"]["content"]
    pieces = [
        (c.get("text") if kind is TextFormat else c["delta"].get("content")) or ""
        for chunk in streamed(kind(answer()))
        for c in chunk["choices"]
    ]

    assert text == "".join(pieces) == "Hé"
    assert choice["finish_reason"] == "stop"


def test_the_bytes_of_half_a_character_are_in_a_chats_logprobs() -> None:
    whole = msgspec.to_builtins(ChatFormat(answer(logprobs=2)).whole(STARTED, PIECES, FINISHED))
    content = whole["choices"][0]["logprobs"]["content"]

    assert [bytes(each["bytes"]) for each in content] == ["Hé".encode(), b"\xe2\x82"]
    assert [len(each["top_logprobs"]) for each in content] == [2, 2]


def test_offsets_of_a_completion_go_on_from_chunk_to_chunk() -> None:
    chunks = streamed(TextFormat(answer(logprobs=1)))
    offsets = [
        c["logprobs"]["text_offset"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]
    ]

    assert offsets == [[0], [2]]


def test_each_of_a_completions_best_tokens_has_a_name_of_its_own() -> None:
    """Though some have the same text, and others are no text by themselves."""
    tokens = [b"a", b"a", b"\xe2\x82", b"\xe2", b"", b"", b"a", b"z"]
    best = tuple(
        Candidate(token_id=10 + index, token=token, logprob=-float(index))
        for index, token in enumerate(tokens)
    )
    chosen = [ChosenToken(chosen=one, best=best) for one in (best[1], best[2], best[7])]
    piece = Piece(text="a\ufffdz", token_ids=(11, 12, 17), logprobs=tuple(chosen))

    whole = TextFormat(answer(logprobs=8)).whole(STARTED, [piece], FINISHED)
    logprobs = msgspec.to_builtins(whole)["choices"][0]["logprobs"]

    assert [list(names.values()) for names in logprobs["top_logprobs"]] == [
        [one.logprob for one in best]
    ] * 3
    assert [*logprobs["top_logprobs"][0]] == [
        "token_id:10", "a", r"bytes:\xe2\x82", r"bytes:\xe2", "", "token_id:15", "token_id:16", "z",
    ]  # fmt: skip
    assert [*logprobs["top_logprobs"][2]][:2] == ["a", "token_id:11"]
    assert logprobs["tokens"] == ["a", r"bytes:\xe2\x82", "z"]
    # By its name in them, a client sees whether the chosen token was the best.
    for token, names in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in names


def test_offsets_of_a_completion_count_whole_characters() -> None:
    pieces = [
        Piece(
            text=text,
            token_ids=(index,),
            logprobs=(ChosenToken(chosen=Candidate(token_id=index, token=token, logprob=-1.0)),),
        )
        for index, (text, token) in enumerate(
            [("a", b"a"), ("", b"\xe2\x82"), ("\u20ac", b"\xac"), ("b", b"b")]
        )
    ]

    whole = TextFormat(answer(logprobs=0)).whole(STARTED, pieces, FINISHED)

    assert msgspec.to_builtins(whole)["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1, 2]
