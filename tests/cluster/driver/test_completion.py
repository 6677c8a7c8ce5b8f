"""Answers from a chain that computes nothing, through a tokenizer whose tokens are bytes."""

import dataclasses
from contextlib import aclosing

import pytest
from byte_writer import EOS, Desk, chat_format, events_of, ids, text_of

from potluck.api.events import Finished, Piece, Started
from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    GenerationRequest,
    GivenPicture,
    SamplingOptions,
    TextPrompt,
    TokenPrompt,
)
from potluck.cluster.driver import completion
from potluck.cluster.driver.completion import complete, tokens_of
from potluck.cluster.driver.loaded_model import LoadedModel
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import ContextExceededError, EngineError, PromptError
from potluck.model.defaults import GenerationDefaults
from potluck.model.text.chat import ChatFormat
from potluck.wire.activation_messages import Sampling


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    return chat_format(tmp_path_factory.mktemp("tokenizer"), chat_template=template)


@pytest.fixture(scope="module")
def plain_chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    """Of a model without a template, whose chats are written as plain text."""
    return chat_format(tmp_path_factory.mktemp("plain"))


def test_an_answer_begins_with_its_prompt_and_ends_with_what_it_took(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=5)
        started, *pieces, finished = await events_of(loaded, request)

        assert started == Started(prompt_token_ids=tuple(ids("Hi")), cached_tokens=0)
        assert text_of(pieces) == "hello"
        assert [t for p in pieces for t in p.token_ids] == ids("hello")
        assert isinstance(finished, Finished)
        assert finished.reason == "length"
        assert finished.completion_tokens == 5
        assert finished.timings.prefill_tokens == 2
        assert [(s.node, s.compute_ms) for s in finished.timings.stages] == [
            ("Desk", 1.0),
            ("Laptop", 2.0),
        ]
        assert finished.timings.tokens_per_s > 0
        assert finished.timings.hop_ms is not None

    Desk(chat, ids("hello")).run(scenario)


def test_a_prompt_becomes_tokens_and_tokens_a_text(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        found = await tokens_of(loaded, TextPrompt("Hé"))
        assert found.token_ids == tuple(ids("Hé"))
        assert found.pieces == (b"H", b"\xc3", b"\xa9")
        assert found.context == loaded.generator.context
        assert (await tokens_of(loaded, TokenPrompt(found.token_ids))).text == "Hé"
        with pytest.raises(PromptError, match="vocabulary has"):
            await tokens_of(loaded, TokenPrompt((loaded.vocab_size,)))

    Desk(chat, []).run(scenario)


def test_the_models_end_ends_it(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        events = await events_of(loaded, GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=9))
        assert text_of(events) == "yes"
        assert events[-2] == Piece(text="", token_ids=(EOS,), logprobs=events[-2].logprobs)
        assert events[-1].reason == "stop"
        assert events[-1].completion_tokens == 4

    Desk(chat, [*ids("yes"), EOS]).run(scenario)


def test_the_models_end_can_be_ignored(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=4, ignore_eos=True)
        events = await events_of(loaded, request)
        assert events[-1].reason == "length"
        assert events[-1].completion_tokens == 4

    Desk(chat, [*ids("a"), EOS, *ids("bc")]).run(scenario)


def test_a_stop_string_is_not_shown_and_ends_it(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=20, stop=("END",))
        events = await events_of(loaded, request)
        assert text_of(events) == "the E"
        assert events[-1].reason == "stop"
        assert events[-1].completion_tokens == len("the EEND")
        # The prompt, the tokens before the last, and those that were asked for ahead of it.
        assert len(desk.chain.forwards) <= len("the EEND") + 2

    desk = Desk(chat, ids("the EEND and more"))
    desk.run(scenario)


@pytest.mark.parametrize(("prompt", "ends"), [("chat", True), ("text", False), ("ids", False)])
def test_the_stop_strings_of_a_template_end_chats_alone(
    plain_chat: ChatFormat, prompt: str, ends: bool
) -> None:
    stop = next(iter(plain_chat.stop_strings))
    prompts = {
        "chat": ChatPrompt((ChatTurn(role="user", content="Hi"),)),
        "text": TextPrompt("Hi"),
        "ids": TokenPrompt((5, 6)),
    }

    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=prompts[prompt], max_tokens=3 + len(stop))
        events = await events_of(loaded, request)
        assert text_of(events) == ("yes" if ends else "yes" + stop)
        assert events[-1].reason == ("stop" if ends else "length")

    Desk(plain_chat, ids("yes" + stop)).run(scenario)


def test_half_a_character_at_the_end_is_shown_as_such(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=3)
        events = await events_of(loaded, request)
        assert text_of(events) == "a\ufffd"
        assert events[-2].token_ids == ()  # the tokens came before, without text

    Desk(chat, ids("a🍲")).run(scenario)


def test_what_looked_like_a_stop_string_is_shown_in_the_end(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=4, stop=("END",))
        assert text_of(await events_of(loaded, request)) == "aEN"

    Desk(chat, [*ids("aEN"), EOS]).run(scenario)


def test_a_character_is_shown_when_it_is_whole(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=4)
        events = await events_of(loaded, request)
        assert [e.text for e in events if isinstance(e, Piece)] == ["", "", "", "🍲"]

    Desk(chat, ids("🍲")).run(scenario)


def test_a_chat_goes_through_the_models_template(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        turns = (ChatTurn(role="user", content="Hi"),)
        events = await events_of(loaded, GenerationRequest(prompt=ChatPrompt(turns), max_tokens=1))
        assert events[0].prompt_token_ids == tuple(ids("user:Hi;"))

    Desk(chat, ids("x")).run(scenario)


@pytest.mark.parametrize(
    "prompt", [TextPrompt("a" * 2049), ChatPrompt((ChatTurn(role="user", content="a" * 2049),))]
)
def test_a_text_that_cannot_fit_the_context_is_not_tokenized(
    chat: ChatFormat, prompt: TextPrompt | ChatPrompt
) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        with pytest.raises(ContextExceededError, match=r"length is 64 tokens .* 2,049 characters"):
            await events_of(loaded, GenerationRequest(prompt=prompt))

    Desk(chat, []).run(scenario)


@pytest.mark.parametrize("made_up", [None, 258])
def test_a_token_that_a_worker_made_up_is_not_the_users_fault(
    chat: ChatFormat, made_up: int | None
) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        with pytest.raises(EngineError, match="last computer of the pipeline answered with"):
            await events_of(loaded, GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=5))

    Desk(chat, [made_up]).run(scenario)


@pytest.mark.parametrize("blind", [None, "mmproj.gguf is cut off."])
def test_a_model_of_text_says_why_it_reads_no_picture(chat: ChatFormat, blind: str | None) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        turn = ChatTurn(role="user", content="Hi", pictures=(GivenPicture(data=b"", at=0),))
        with pytest.raises(PromptError, match="reads only text") as refused:
            await events_of(
                dataclasses.replace(loaded, blind=blind),
                GenerationRequest(prompt=ChatPrompt((turn,))),
            )
        assert refused.value.message.startswith(blind or "This model")

    Desk(chat, []).run(scenario)


def test_token_ids_are_taken_as_they_are_and_must_be_the_models(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TokenPrompt((5, 6)), max_tokens=1)
        assert (await events_of(loaded, request))[0].prompt_token_ids == (5, 6)
        for tokens in ((258,), ()):
            with pytest.raises(PromptError):
                await events_of(loaded, GenerationRequest(prompt=TokenPrompt(tokens)))

    Desk(chat, ids("x")).run(scenario)


@pytest.mark.parametrize(("known", "why"), [((258,), "258 is not of"), ((1,) * 65, "65 tokens")])
def test_known_tokens_must_be_the_models_and_fit_its_context(
    chat: ChatFormat, known: tuple[int, ...], why: str
) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        with pytest.raises(PromptError, match=why):
            await events_of(loaded, GenerationRequest(prompt=TextPrompt("Hi"), known=known))

    Desk(chat, []).run(scenario)


def test_an_answer_that_is_known_as_a_whole_only_ends(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), known=tuple(ids("yes")), max_tokens=3)
        started, finished = await events_of(loaded, request)
        assert isinstance(started, Started)
        assert (finished.reason, finished.completion_tokens) == ("length", 3)

    Desk(chat, ids("yes")).run(scenario)


def test_a_tokenizer_with_more_tokens_than_the_model_is_a_sentence(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        smaller = dataclasses.replace(loaded, vocab_size=10)
        with pytest.raises(PromptError, match="vocabulary has 10 tokens"):
            await events_of(smaller, GenerationRequest(prompt=TextPrompt("Hi")))

    Desk(chat, ids("x")).run(scenario)


def test_log_probabilities_come_with_the_bytes_of_their_tokens(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(
            prompt=TextPrompt("Hi"), max_tokens=1, sampling=SamplingOptions(logprobs=1)
        )
        piece = (await events_of(loaded, request))[1]
        assert piece.logprobs[0].chosen.token == b"x"
        assert piece.logprobs[0].chosen.logprob == -0.5
        assert piece.logprobs[0].best[0].token_id == ids("x")[0]

    Desk(chat, ids("x")).run(scenario)


def test_without_log_probabilities_no_token_has_any(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        events = await events_of(loaded, GenerationRequest(prompt=TokenPrompt((1,)), max_tokens=1))
        assert events[1].logprobs == ()

    Desk(chat, ()).run(scenario)


def test_what_is_not_asked_for_is_as_the_model_recommends(chat: ChatFormat) -> None:
    desk = Desk(chat, ids("x"))

    async def scenario(loaded: LoadedModel) -> None:
        asked = SamplingOptions(temperature=0.0, seed=7)
        await events_of(
            loaded, GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=1, sampling=asked)
        )
        assert desk.chain.forwards[-1].sampling == Sampling(
            temperature=0.0, top_k=40, top_p=0.9, seed=7
        )

    desk.run(scenario, temperature=0.6, top_k=40, top_p=0.9)


def test_each_sampling_option_is_the_models_own_until_it_is_asked_for() -> None:
    recommended = {"temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.1}
    defaults = GenerationDefaults(repetition_penalty=1.1, **recommended)
    neutral = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    asked = SamplingOptions(repetition_penalty=1.0, seed=1, **neutral)

    assert completion._sampling(asked, defaults) == Sampling(
        repetition_penalty=1.0, seed=1, **neutral
    )
    assert completion._sampling(SamplingOptions(seed=1), defaults) == Sampling(
        repetition_penalty=1.1, seed=1, **recommended
    )


def test_without_any_word_the_defaults_are_openais_and_the_seed_is_new(chat: ChatFormat) -> None:
    one = completion._sampling(SamplingOptions(), GenerationDefaults())
    two = completion._sampling(SamplingOptions(), GenerationDefaults())
    assert (one.temperature, one.top_p, one.top_k) == (1.0, 1.0, 0)
    assert one.seed != two.seed


def test_an_answer_without_limit_fills_the_context(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TokenPrompt(tuple(range(60))))
        assert (await events_of(loaded, request))[-1].completion_tokens == 4

    Desk(chat, ids("abcdefgh")).run(scenario)


def test_timings_leave_out_the_first_token_whose_time_is_the_prompts() -> None:
    times = iter([100.0, 107.0])
    watch = completion._Stopwatch(lambda: next(times), next(times))
    for seconds, compute_ms in (
        (7.0, (900.0, 900.0)),
        (0.1, (20.0, 30.0)),
        (0.3, (40.0, 50.0)),
        (0.2, (10.0, 70.0)),
    ):
        watch.add(Token(token_id=1, logprob=None, top=(), seconds=seconds, compute_ms=compute_ms))

    timings = watch.timings(Usage(prompt_tokens=10, cached_tokens=4), ("Desk", "Laptop"))

    assert timings.time_to_first_token_s == 7.0
    assert timings.tokens_per_s == pytest.approx(3 / 0.6)
    assert (timings.prefill_tokens, timings.cached_tokens) == (6, 4)
    assert [(s.node, s.compute_ms) for s in timings.stages] == [("Desk", 20.0), ("Laptop", 50.0)]
    assert timings.hop_ms == pytest.approx(120.0)  # the median of 50, 210 and 120


def test_one_token_has_no_rate_and_no_hops(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=1)
        timings = (await events_of(loaded, request))[-1].timings
        assert (timings.tokens_per_s, timings.hop_ms, timings.stages) == (0.0, None, ())

    Desk(chat, ids("x")).run(scenario)


def test_steps_that_name_other_stages_are_not_counted(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        request = GenerationRequest(prompt=TextPrompt("Hi"), max_tokens=3)
        assert (await events_of(loaded, request))[-1].timings.stages == ()

    Desk(chat, ids("xyz"), compute_ms=(1.0,)).run(scenario)


def test_closing_the_answer_frees_its_session(chat: ChatFormat) -> None:
    async def scenario(loaded: LoadedModel) -> None:
        async with aclosing(complete(loaded, GenerationRequest(prompt=TextPrompt("Hi")))) as events:
            await anext(events)
        assert not any(each.turn for each in loaded.generator._conversations)

    Desk(chat, ids("hello")).run(scenario)
