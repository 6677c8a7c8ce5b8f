"""A model's tokenizer and template in their own process: what they say, and what they may cost."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from potluck.cluster.driver.model_text import Conversation
from potluck.cluster.text.client import ModelText, TextLimits, open_text
from potluck.cluster.text.limited import _watch
from potluck.errors import BrokenModelError, NotFoundError, PromptError
from potluck.model.gguf.words import read_gguf_words
from potluck.model.text.chat import ChatFormat
from potluck.model.text.detokenizer import Detokenizer

BYTES = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
HELLO: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
TIGHT = TextLimits(memory=256 << 20, encode_s=1.0)

Scenario = Callable[[ModelText], Coroutine[Any, Any, None]]


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE(vocab=BYTES, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    return made


def write(folder: Path, made: Tokenizer | None = None, template: str = TEMPLATE) -> Path:
    (made or tokenizer()).save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def run(folder: Path, scenario: Scenario, limits: TextLimits | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            text = await open_text(folder, folder / "text.log", limits)
            try:
                await scenario(text)
            finally:
                await text.close()

    asyncio.run(main())


def test_it_encodes_as_the_format_does_and_its_vocabulary_decodes(tmp_path: Path) -> None:
    here = ChatFormat.load(write(tmp_path))

    async def scenario(text: ModelText) -> None:
        ids = await text.encode("Grüße 🙂")
        assert ids == here.encode("Grüße 🙂")
        encoded = await text.encode_chat(Conversation(messages=HELLO))
        assert encoded.token_ids == here.encode_chat(HELLO)
        assert (text.stop_ids, text.stop_strings) == (here.stop_ids, here.stop_strings)
        detokenizer = Detokenizer(text.vocabulary)
        assert "".join(map(detokenizer.push, ids)) == "Grüße 🙂"

    run(tmp_path, scenario)


def test_requests_at_once_get_their_own_answers(tmp_path: Path) -> None:
    async def scenario(text: ModelText) -> None:
        lengths = range(1, 9)
        answers = await asyncio.gather(*(text.encode("a" * n) for n in lengths))
        assert [len(ids) for ids in answers] == list(lengths)

    run(write(tmp_path), scenario)


def test_an_error_is_the_models_own_and_the_process_goes_on(tmp_path: Path) -> None:
    template = "{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}{% endif %}ok"

    async def scenario(text: ModelText) -> None:
        before = text._process._process
        with pytest.raises(PromptError, match="no x"):
            await text.encode_chat(Conversation(messages=[{"role": "user", "content": "x"}]))
        assert len((await text.encode_chat(Conversation(messages=HELLO))).token_ids) == 2
        assert text._process._process is before

    run(write(tmp_path, template=template), scenario)


def test_a_model_without_tokenizer_cannot_be_opened_and_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children())

    with pytest.raises(BrokenModelError, match="has no tokenizer, without which"):
        run(tmp_path, lambda _: asyncio.sleep(0))

    assert set(psutil.Process().children()) <= before


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "one filter": "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_template_that_does_not_end_is_ended_and_named(tmp_path: Path, what: str) -> None:
    async def scenario(text: ModelText) -> None:
        with pytest.raises(BrokenModelError, match=f"{tmp_path.name} took more than 1 seconds"):
            await text.encode_chat(Conversation(messages=HELLO))
        assert await text.encode("ab") == [BYTES["a"], BYTES["b"]]  # by another process

    source = "{% if messages[0].content == 'hi' %}" + ENDLESS[what] + "{% endif %}"
    run(write(tmp_path, template=source), scenario, TIGHT)


LARGE = {
    "a filter": "{{ 'a' | center(2500000000) | length }}",
    "doubling": "{% set ns = namespace(s='x') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "a product": "{{ ('x' * 10 ** 12) | length }}",
    "a list": "{{ (10 ** 12 * [1]) | length }}",
}


@pytest.mark.parametrize("what", LARGE)
def test_a_template_cannot_take_the_memory(tmp_path: Path, what: str) -> None:
    """Whether it fails or is ended: the next request is answered."""

    async def scenario(text: ModelText) -> None:
        with pytest.raises((PromptError, BrokenModelError)):
            await text.encode_chat(Conversation(messages=HELLO))
        assert await text.encode("ab") == [BYTES["a"], BYTES["b"]]

    source = "{% if messages[0].content == 'hi' %}" + LARGE[what] + "{% endif %}"
    run(write(tmp_path, template=source), scenario, TIGHT)


def test_a_tokenizer_that_takes_the_memory_is_ended_and_the_node_answers_meanwhile(
    tmp_path: Path,
) -> None:
    """Each of its normalizers makes of every character ten: 10 GB of the prompt "hi"."""
    made = tokenizer()
    growing = [normalizers.Replace(letter, letter * 10) for letter in "i" * 10]
    made.normalizer = normalizers.Sequence(growing)
    gaps: list[float] = []

    async def scenario(text: ModelText) -> None:
        async def tick() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - before)

        ticking = asyncio.create_task(tick())
        with pytest.raises(BrokenModelError, match="of memory, or crashed"):
            await text.encode("hi")
        assert await text.encode("ab") == [BYTES["a"], BYTES["b"]]
        ticking.cancel()

    run(write(tmp_path, made), scenario, TextLimits(memory=256 << 20))

    assert len(gaps) > 3
    assert max(gaps) < 1.0


def test_a_gguf_vocabulary_that_takes_the_memory_ends_only_its_process(tmp_path: Path) -> None:
    """5,120 tokens, which can be joined in 1.3 million ways, of 600 bytes each."""
    tokens = [letter * length for letter in "abcdefghij" for length in range(1, 513)]
    fields: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.scores": [0.0] * len(tokens),
    }
    for name, data in read_gguf_words(fields).items():
        (tmp_path / name).write_bytes(data)

    async def scenario() -> None:
        with pytest.raises(BrokenModelError, match=r"of memory, or crashed|cannot be built"):
            await open_text(tmp_path, tmp_path / "text.log", TextLimits(memory=256 << 20))

    asyncio.run(scenario())
    assert not (tmp_path / "tokenizer.json").exists()


def test_where_the_system_has_no_limit_the_node_watches_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is told of a limit that it never reaches."""
    made = tokenizer()
    made.normalizer = normalizers.Sequence([normalizers.Replace("i", "i" * 10)] * 9)
    folder = write(tmp_path, made)

    async def scenario(text: ModelText) -> None:
        monkeypatch.setattr(text._process, "_memory", 64 << 20)
        with pytest.raises(BrokenModelError, match=r"more than 67\.1 MB of memory"):
            await text.encode("hi")

    run(folder, scenario, TextLimits(memory=2 << 30))


def test_a_request_that_is_cancelled_ends_its_work(tmp_path: Path) -> None:
    async def scenario(text: ModelText) -> None:
        process = text._process._process
        assert process is not None
        asking = asyncio.create_task(text.encode_chat(Conversation(messages=HELLO)))
        await asyncio.sleep(0)
        assert text._turns.locked()
        asking.cancel()
        await asyncio.wait([asking])
        assert process.returncode is not None
        assert await text.encode("ab") == [BYTES["a"], BYTES["b"]]

    source = "{% if messages[0].content == 'hi' %}" + ENDLESS["loops"] + "{% endif %}"
    run(write(tmp_path, template=source), scenario)


def test_a_process_that_died_is_started_again(tmp_path: Path) -> None:
    async def scenario(text: ModelText) -> None:
        assert text._process._process is not None
        text._process._process.kill()
        await text._process._process.wait()
        assert await text.encode("ab") == [BYTES["a"], BYTES["b"]]

    run(write(tmp_path), scenario)


def test_what_was_closed_starts_no_process(tmp_path: Path) -> None:
    async def scenario(text: ModelText) -> None:
        await text.close()
        with pytest.raises(NotFoundError, match="unloaded"):
            await text.encode("ab")

    run(write(tmp_path), scenario)


def test_a_process_without_a_limit_of_the_system_is_ended_by_its_node() -> None:
    """Windows and macOS refuse a process no memory."""
    fill = "kept = b'x' * (1 << 27); import time; time.sleep(60)"

    async def main() -> None:
        async with asyncio.timeout(20):
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", fill)
            await _watch(process, 1 << 26)
            assert await process.wait() != 0

    asyncio.run(main())
