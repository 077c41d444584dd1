"""One revision of a model of the hub, as a folder of this machine."""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library

OPTION = "--revision"
WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")
"""What is served of a model: no second copy of its weights in another format."""


def snapshot_folder(model: str, revision: str) -> str:
    """Fetch a branch, tag or commit of a hub id, unless it is here already; its folder.

    Raises:
        InputError: The model is a folder, or the hub has no such revision.
    """
    if Path(model).is_dir():
        raise InputError(f"{OPTION} {revision}: {model} is a folder, which has one; leave it out")
    from huggingface_hub import snapshot_download

    with read_by_library(model, what=f"{OPTION} {revision}"):
        return str(snapshot_download(model, revision=revision, allow_patterns=list(WANTED)))
