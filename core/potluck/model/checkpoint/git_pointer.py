"""Tell what git leaves in place of a large file (Git LFS) from the file itself."""

from pathlib import Path

from potluck.errors import BrokenModelError

_BEGINS = b"version "  # of https://git-lfs.github.com/spec/v1; no file of a model begins so


def refuse_git_pointer(path: Path, data: bytes) -> None:
    """Refuse a file that begins with these bytes if it is not the file itself.

    Raises:
        BrokenModelError: it is what git leaves.
    """
    if data.startswith(_BEGINS):
        raise BrokenModelError(
            f"{path.name} is not the file itself but what git leaves in its place (Git LFS). Run `git lfs pull` in"
            f" {path.parent}, or download the file from the model's repository.",
            file=path.name,
        )
