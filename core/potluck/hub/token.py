"""The user's token for the Hub: given once, kept in a private file, and sent to nobody else."""

from pathlib import Path

from potluck.files import write_atomically

_MAX_BYTES = 1024


class TokenFile:
    """The token that the user gave to Potluck, or that of `huggingface_hub` if they are logged in."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> str | None:
        try:
            with self._file.open("rb") as file:
                token = file.read(_MAX_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            token = ""
        if token:
            return token
        from huggingface_hub import get_token

        return get_token()

    def write(self, token: str) -> None:
        """Keep a token; an empty one removes the file. Only its owner may read it."""
        if token:
            write_atomically(self._file, token.encode("ascii"))
        else:
            self._file.unlink(missing_ok=True)
