"""An error as JSON: of the local API, and of `/v1` as OpenAI has it. Pure."""

from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType

Scalar: TypeAlias = str | int | float | bool | None


class Error(Struct, frozen=True, kw_only=True):
    """An error. `code` is stable (see `potluck.errors`); `message` is a sentence for a person."""

    code: str
    message: str
    data: dict[str, Scalar] = {}


class ErrorBody(Struct, frozen=True, kw_only=True):
    error: Error


class ApiError(Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    progress: float | UnsetType = UNSET  # 0 to 1: how far the model is loaded that is not ready yet


class ApiErrorBody(Struct, frozen=True, kw_only=True):
    """An error of `/v1`, as a response or as an event inside a stream."""

    error: ApiError
