"""`/v1/models`, and the model that a request names."""

from typing import Any

import openai
import pytest
from fake_backend import MODEL_ID

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]


def test_models_are_listed_and_found(ai: Any) -> None:
    assert [model.id for model in ai.models.list()] == ["guide"]
    assert ai.models.retrieve("guide").owned_by == "potluck"


@pytest.mark.parametrize("name", ["guide", "potluck", MODEL_ID])
def test_known_model_names_answer_with_the_models_own(ai: Any, name: str) -> None:
    assert ai.chat.completions.create(model=name, messages=HI).model == "guide"


def test_unknown_model_is_told_what_there_is(ai: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="guide, potluck") as refused:
        ai.chat.completions.create(model="gpt-9", messages=HI)
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        ai.models.retrieve("gpt-9")
