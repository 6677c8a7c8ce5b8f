"""Fields of other servers that OpenAI's API lacks.

Clients of llama.cpp's server and of vLLM send them: other names, and what is not offered here. Pure, like
`request_shapes`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

MAX_TOKENS = 1 << 20  # the longest context of any known model
_NOTHING = Raw(b"null")
_LONGEST = 32  # bytes of a value that may be neutral; a longer one is not decoded


class OtherServers(Struct, frozen=True, kw_only=True):
    """The fields. None: the client did not send it."""

    # llama.cpp's names of `max_tokens` and `repetition_penalty`.
    n_predict: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    # Not offered, and without them the answer would be another: see `not_offered`.
    mirostat: Raw = _NOTHING
    typical_p: Raw = _NOTHING
    tfs_z: Raw = _NOTHING
    top_a: Raw = _NOTHING
    top_n_sigma: Raw = _NOTHING
    dynatemp_range: Raw = _NOTHING
    xtc_probability: Raw = _NOTHING
    dry_multiplier: Raw = _NOTHING
    min_tokens: Raw = _NOTHING
    stop_token_ids: Raw = _NOTHING
    allowed_token_ids: Raw = _NOTHING
    bad_words: Raw = _NOTHING
    prompt_logprobs: Raw = _NOTHING
    truncate_prompt_tokens: Raw = _NOTHING
    use_beam_search: Raw = _NOTHING
    length_penalty: Raw = _NOTHING
    lora: Raw = _NOTHING


# With these values, a field changes nothing; many clients send them.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "dynatemp_range": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (-1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "lora": ([],),
}


def not_offered(asked: OtherServers) -> Iterator[str]:
    """The fields of a request that would change the answer, and are not offered."""
    for name, neutral in _NEUTRAL.items():
        raw = bytes(getattr(asked, name))
        value = msgspec.json.decode(raw) if len(raw) <= _LONGEST else raw
        if value is not None and value not in neutral:
            yield name
