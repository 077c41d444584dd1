"""A model of the hub as a folder of this machine, in one of its revisions.

Whoever reads a model by its files (slices for ranks, layers one by one, what a start keeps for the
next one) needs a folder. The hub's client has one for each commit that it fetched.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library

OPTION = "--revision"
WORDS = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")
"""The files of a model beside its weights, with which a tokenizer is content."""
WEIGHTS, OLD_WEIGHTS = ("*.safetensors",), ("pytorch_model*.bin",)
"""Files of weights; the second are fetched of a model that has none of the first."""
COPIES = ("original/*", "consolidated*")
"""A second copy of the weights, as some publishers add it."""


def local_folder(
    model: str, revision: str | None = None, *, option: str = "", weights: bool = True
) -> str:
    """The folder of a model: as it was given, or what is fetched of a hub id.

    Args:
        model: A folder, or a hub id.
        revision: A branch, tag or commit of a hub id; None: its main branch.
        option: That named the model.
        weights: Whether weights are wanted, and not only what a tokenizer is made of.

    Raises:
        InputError: There is no such folder, and the hub has nothing of that name; or it is a
            folder, and a revision was asked for.
    """
    if Path(model).is_dir():
        if revision is not None:
            raise InputError(
                f"{OPTION} {revision}: {model} is a folder, which has one; leave it out"
            )
        return model
    from huggingface_hub import snapshot_download

    def fetched(patterns: tuple[str, ...]) -> Path:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(COPIES),
            )
        )

    what = "" if revision is None else f"{OPTION} {revision}"
    with read_by_library(model, option=option, what=what):
        folder = fetched(WORDS + WEIGHTS if weights else WORDS)
        if weights and not any(folder.glob("*.safetensors")):
            fetched(OLD_WEIGHTS)
    return str(folder)


def model_name(folder: Path) -> str:
    """The name of a model for people: of its folder, or of the hub id that it was fetched by."""
    kept = folder.parent.parent.name
    if folder.parent.name == "snapshots" and kept.startswith("models--"):
        return kept.removeprefix("models--").replace("--", "/")
    return folder.name
