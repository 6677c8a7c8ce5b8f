"""Pictures that programs name by an address reach the node as bytes, or are refused."""

import asyncio

import pytest
from fake_backend import FakeBackend

from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    GenerationRequest,
    GivenPicture,
    TokensRequest,
)
from potluck.api.v1.addressed import MOST_FETCHED, Fetch, WithPictures
from potluck.api.v1.request_shapes import UnsupportedParameterError
from potluck.errors import UsageError

CAT, DOG = "https://example.org/cat.png", "http://example.org/dog.png"
FILES = {CAT: b"a cat", DOG: b"a dog"}
SENT = GivenPicture(data=b"sent along", at=3)


async def fetch(address: str, most: int) -> bytes:
    if address not in FILES:
        raise UsageError(f"There is nothing at {address}.")
    return FILES[address]


def prompt(*pictures: GivenPicture) -> ChatPrompt:
    first = ChatTurn(role="user", content="What is this?", pictures=pictures)
    return ChatPrompt((first, ChatTurn(role="assistant", content="A picture.")))


def at(address: str) -> GivenPicture:
    return GivenPicture(at=1, address=address, field="messages[0].content[1].image_url")


async def asked(backend: FakeBackend, fetch: Fetch | None, *pictures: GivenPicture) -> None:
    request = GenerationRequest(prompt=prompt(*pictures))
    async for _ in WithPictures(backend, fetch).generate(request):
        pass


def test_the_files_take_the_place_of_their_addresses() -> None:
    backend = FakeBackend()

    asyncio.run(asked(backend, fetch, at(CAT), SENT, at(DOG)))

    cat, dog = GivenPicture(data=b"a cat", at=1), GivenPicture(data=b"a dog", at=1)
    assert backend.generated[-1].prompt == prompt(cat, SENT, dog)


@pytest.mark.parametrize(
    ("fetch", "words"), [(None, "--fetch-pictures"), (fetch, "There is nothing at")]
)
def test_an_address_that_is_not_fetched_is_refused_with_its_field(
    fetch: Fetch | None, words: str
) -> None:
    backend = FakeBackend()

    with pytest.raises(UnsupportedParameterError, match=words) as caught:
        asyncio.run(asked(backend, fetch, SENT, at("https://example.org/no.png")))

    assert caught.value.param == "messages[0].content[1].image_url"
    assert backend.generated == []


def test_the_files_of_a_request_have_one_limit_together() -> None:
    limits: list[int] = []

    async def note(address: str, most: int) -> bytes:
        limits.append(most)
        return await fetch(address, most)

    asyncio.run(asked(FakeBackend(), note, at(CAT), SENT, at(DOG)))

    assert limits == [MOST_FETCHED, MOST_FETCHED - len(FILES[CAT])]


def test_other_prompts_pass_unchanged() -> None:
    backend = FakeBackend()

    asyncio.run(asked(backend, None, SENT))

    assert backend.generated[-1].prompt == prompt(SENT)


def test_tokens_are_counted_of_the_same_prompt() -> None:
    fetched: list[str] = []

    async def note(address: str, most: int) -> bytes:
        fetched.append(address)
        return await fetch(address, most)

    async def main() -> None:
        await WithPictures(FakeBackend(), note).tokens(TokensRequest(prompt=prompt(at(CAT))))

    asyncio.run(main())

    assert fetched == [CAT]
