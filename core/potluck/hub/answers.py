"""What the Hub answers, as far as it is read.

A field of another type makes an answer unreadable; fields that are not named here are left alone.
"""

from msgspec import Struct, field


class Lfs(Struct, frozen=True):
    """What the Hub says of a large file, which git has only a pointer to."""

    sha256: str


class File(Struct, frozen=True):
    """A file of a repository."""

    name: str = field(name="rfilename")
    size: int | None = None
    blob_id: str | None = field(
        name="blobId", default=None
    )  # git's SHA-1; of a large file's pointer
    lfs: Lfs | None = None


class TokenizerConfig(Struct, frozen=True):
    """What is read of a repository's tokenizer_config.json."""

    chat_template: object = None


class Config(Struct, frozen=True):
    """What is read of a repository's config.json and tokenizer_config.json."""

    architectures: tuple[str, ...] | None = None
    tokenizer_config: TokenizerConfig | None = None


class Gguf(Struct, frozen=True):
    """What the Hub has read in the first GGUF file of a repository."""

    total: int | None = None  # parameters
    architecture: str | None = None
    context_length: int | None = None
    chat_template: object = None


class Safetensors(Struct, frozen=True):
    """What the Hub has counted in all safetensors files of a repository."""

    total: int | None = None  # parameters


class Card(Struct, frozen=True):
    """What the author says in README.md."""

    base_model: str | tuple[str, ...] | None = None


class Entry(Struct, frozen=True):
    """A repository, in a list or alone."""

    id: str  # org/name
    sha: str | None = None  # the commit
    tags: tuple[str, ...] = ()
    gated: bool | str = False
    downloads: int | None = None
    config: Config | None = None
    gguf: Gguf | None = None
    safetensors: Safetensors | None = None
    card: Card | None = field(name="cardData", default=None)
    siblings: tuple[File, ...] = ()


class User(Struct, frozen=True):
    """Whose token it is."""

    name: str
