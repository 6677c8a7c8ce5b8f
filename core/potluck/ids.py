"""The ids that are equal on every node: nodes, homes, models, tensors, sessions."""

from typing import Literal, NewType, TypeAlias

NodeId = NewType("NodeId", str)
"""SHA-256 of a node's public key (SubjectPublicKeyInfo, DER), lower-case hex."""

HomeId = NewType("HomeId", str)
"""SHA-256 of a home's certificate authority's public key, lower-case hex."""

ModelId = NewType("ModelId", str)
"""SHA-256 over a model's canonical config and its tensors, lower-case hex."""

Digest = NewType("Digest", str)
"""SHA-256 of a tensor's bytes as in its file, lower-case hex."""

SessionId = NewType("SessionId", str)
"""Identifies a conversation's KV cache in all stages; the master chooses it at random."""

Role: TypeAlias = Literal["master", "worker"]
"""What a member may do in its home; its certificate has the role."""

Right: TypeAlias = Literal["ask", "load", "metrics"]
"""What a program may do by its key: ask the loaded model, have another one loaded, read `/metrics`."""

RIGHTS: tuple[Right, ...] = ("ask", "load", "metrics")
USUAL_RIGHTS: tuple[Right, ...] = ("ask", "load")

DIGEST_LENGTH = 64  # hex characters of SHA-256

_GROUP = 4
_SHOWN_GROUPS = 4


def is_digest(text: str) -> bool:
    """Whether the text is a lower-case SHA-256 in hex, hence safe as a file name."""
    return len(text) == DIGEST_LENGTH and all(c in "0123456789abcdef" for c in text)


def short(identifier: str) -> str:
    """The first 8 characters, for logs and lists."""
    return identifier[:8]


def grouped(identifier: str) -> str:
    """The form in which people compare ids: `3F2A 90C1 77B0 E4D2`."""
    head = identifier[: _GROUP * _SHOWN_GROUPS].upper()
    return " ".join(head[i : i + _GROUP] for i in range(0, len(head), _GROUP))
