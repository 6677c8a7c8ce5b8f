"""Deletes a model from the Hugging Face cache, with what only it needs. Blocks: call it in a thread."""

from collections.abc import Sequence
from pathlib import Path

from potluck.errors import StoreError, UsageError
from potluck.hub.found import ModelFolder
from potluck.reasons import reason
from potluck.store.gguf_files import gguf_parts, is_gguf


def delete_model(model: ModelFolder, models: Sequence[ModelFolder], cache: Path) -> int:
    """Delete a model that is in the Hugging Face cache.

    Args:
        model: to be deleted.
        models: all models of this computer.
        cache: the folder of that cache.

    Returns:
        How many bytes of the disk are free now.

    Raises:
        UsageError: the model is not of that cache.
        StoreError: a file cannot be deleted.
    """
    if model.source != "hub":
        whose = {
            "potluck": "comes with Potluck",
            "ollama": "belongs to Ollama; delete it there",
            "lmstudio": "belongs to LM Studio; delete it there",
        }.get(model.source, f"is in a folder of yours, {model.path}; delete it there")
        raise UsageError(
            f"{model.name} {whose}. Potluck deletes only what was downloaded into the Hugging Face cache.",
            model=model.name,
        )
    repository = _repository(model.path)
    others = [m for m in models if m.source == "hub" and _repository(m.path) == repository]
    try:
        if len(others) > 1:
            return _delete_files(model, repository)
        return _delete_repository(repository, cache)
    except OSError as error:
        raise StoreError(
            f"{model.name} cannot be deleted: {reason(error)}.", model=model.name
        ) from error


def _repository(path: Path) -> Path:
    """The folder of a model's repository in the cache."""
    return next((p.parent for p in path.parents if p.name == "snapshots"), path)


def _delete_repository(repository: Path, cache: Path) -> int:
    from huggingface_hub import scan_cache_dir

    found = scan_cache_dir(cache)
    for repo in found.repos:
        if repo.repo_path.resolve() == repository.resolve():
            strategy = found.delete_revisions(*(r.commit_hash for r in repo.revisions))
            strategy.execute()
            return strategy.expected_freed_size
    return 0


def _delete_files(model: ModelFolder, repository: Path) -> int:
    """Delete one of several models of a repository: its links in all revisions, and what they lead to."""
    is_file = is_gguf(model.path)
    files = gguf_parts(model.path) if is_file else list(model.path.glob("*.safetensors"))
    freed = 0
    for blob in {file.resolve() for file in files}:
        for link in (repository / "snapshots").rglob("*"):
            if link.is_symlink() and link.resolve() == blob:
                link.unlink()
        if blob.is_relative_to(repository.resolve()):  # a link may lead anywhere
            freed += blob.stat().st_size
            blob.unlink()
    return freed
