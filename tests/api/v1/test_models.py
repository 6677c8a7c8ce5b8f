"""`/v1/models`, and the model that a request names."""

from typing import Any

import openai
import pytest
from fake_backend import MODEL_ID, Server

from potluck.api.v1.models import named
from potluck.api.values.schema import ServedModel

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]


def test_models_are_listed_and_found(ai: Any) -> None:
    assert [model.id for model in ai.models.list()] == ["guide"]
    assert ai.models.retrieve("guide").owned_by == "potluck"


@pytest.mark.parametrize("name", ["guide", "potluck", MODEL_ID])
def test_known_model_names_answer_with_the_models_own(ai: Any, name: str) -> None:
    assert ai.chat.completions.create(model=name, messages=HI).model == "guide"


def test_what_is_known_of_a_model_is_listed(ai: Any, server: Server) -> None:
    loaded = ServedModel(name="red", created=1, is_loaded=True, context=4096, nbytes=5)
    server.update(served=(loaded, ServedModel(name="blue", created=2, format="gguf")))

    red, blue = ai.models.list()

    assert (red.max_model_len, red.potluck) == (4096, {"loaded": True, "nbytes": 5})
    assert blue.potluck == {"loaded": False, "format": "gguf"}
    assert not hasattr(blue, "max_model_len")


def test_model_that_is_not_loaded_is_asked_for_by_its_own_name(ai: Any, server: Server) -> None:
    blue = ServedModel(name="org/Blue", created=1)
    server.update(served=(*server.backend.current.served, blue))

    assert ai.chat.completions.create(model="blue", messages=HI).model == "org/Blue"
    ai.chat.completions.create(model="potluck", messages=HI)

    assert [request.model for request in server.backend.generated] == ["org/Blue", None]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("org/Small-GGUF", "org/Small-GGUF"),
        ("ORG/small-gguf", "org/Small-GGUF"),
        ("small-gguf", "org/Small-GGUF"),
        ("other/Small-GGUF", None),
        ("other/folder", "folder"),
        ("qwen3", "qwen3:latest"),
        ("qwen3:latest", "qwen3:latest"),
        ("folder:latest", "folder"),
        ("/models/folder", "folder"),
        ("fold", None),
    ],
)
def test_names_are_understood_as_clients_write_them(name: str, meant: str | None) -> None:
    served = [
        ServedModel(name="org/Small-GGUF", created=1),
        ServedModel(name="folder", created=1, aliases=("/models/folder",)),
        ServedModel(name="qwen3:latest", created=1),
    ]
    found = named(name, served)
    assert (found.name if found is not None else None) == meant


def test_unknown_model_is_told_what_there_is(ai: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="guide, potluck") as refused:
        ai.chat.completions.create(model="gpt-9", messages=HI)
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        ai.models.retrieve("gpt-9")
