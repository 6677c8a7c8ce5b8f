"""What went wrong with the Hub, as errors with sentences for people."""

import errno

from potluck.errors import (
    DiskFullError,
    GatedModelError,
    HubError,
    NotFoundError,
    OfflineError,
    PotluckError,
    TooManyRequestsError,
)
from potluck.reasons import reason

_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2")
"""huggingface_hub 1 speaks HTTP with httpx and 2 with httpx2, whose errors it does not wrap."""


def offline() -> OfflineError:
    """The Hub cannot be reached."""
    return OfflineError(
        "The Hugging Face Hub cannot be reached. Models on this computer work without it; look at the"
        " Internet connection to search and download."
    )


def page_of(model: str) -> str:
    """The address of a model's page, for a browser."""
    return f"https://huggingface.co/{model}"


def gated(model: str, *, has_token: bool) -> GatedModelError:
    """The model's terms were not accepted, or nobody said who accepted them."""
    page = page_of(model)
    then = (
        "Accept them there with the account of your token, then try again."
        if has_token
        else "Accept them there, make a token under huggingface.co/settings/tokens, and give it to Potluck."
    )
    return GatedModelError(
        f"{model} is only for those who accepted its terms, on {page}. {then}",
        page=page,
        has_token=has_token,
    )


def absent(model: str, *, has_token: bool) -> NotFoundError:
    """There is no such repository, or not for this user."""
    unless = "that your token may see" if has_token else "that everybody may see"
    return NotFoundError(
        f"The Hub has no model {model} {unless}. Look at its name: it is like Qwen/Qwen3-8B.",
        model=model,
    )


def explained(error: Exception, model: str, *, has_token: bool) -> PotluckError | None:
    """The error to show for one that `huggingface_hub` raised; None: it is a fault of ours.

    Args:
        error: what was raised.
        model: `org/name` of the repository that was asked for.
        has_token: whether a token was sent.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    match error:
        case PotluckError():
            return error
        case GatedRepoError():
            return gated(model, has_token=has_token)
        case RepositoryNotFoundError() | HFValidationError():
            return absent(model, has_token=has_token)
        case OfflineModeIsEnabled():
            return offline()
        case HfHubHTTPError():
            return _of_status(error.response.status_code, model, has_token=has_token)
        case OSError(errno=errno.ENOSPC):
            return DiskFullError(
                "The disk of the Hugging Face cache is full. Delete something on it."
            )
        case _ if type(error).__module__.partition(".")[0] in _TRANSPORTS:
            return offline()
        case OSError():
            return HubError(f"{model} cannot be written to the disk: {reason(error)}.")
        case _:
            return None


def _of_status(status: int, model: str, *, has_token: bool) -> PotluckError:
    match status:
        case 401 if has_token:
            return GatedModelError(
                "The Hub does not know the token. Make a new one under huggingface.co/settings/tokens,"
                " and give it to Potluck.",
                page=page_of(model),
                has_token=True,
            )
        case 401 | 403:
            return gated(model, has_token=has_token)
        case 404:
            return absent(model, has_token=has_token)
        case 429:
            return TooManyRequestsError(
                "The Hub has had too many requests from this address. Wait a few minutes; with a token"
                " it allows more."
            )
        case _:
            return HubError(
                f"The Hub answered with an error of its own ({status}). Try again later."
            )
