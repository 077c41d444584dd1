"""The tokenizer beside a model: which files are one, and reading it in one clear line or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.models.folder import read_by_library
from ridgeline.records.input_file import read_json, without_collection

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)
"""The files that a tokenizer is made of, in the order in which checksums take them."""
_ENOUGH = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that take tokenizer.json as it is."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer that transformers could read."""
    return any((folder / name).is_file() for name in _ENOUGH)


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of `TOKENIZER_FILES` that a folder has."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


@without_collection()  # what libraries make as they are loaded stays
def read_tokenizer(
    model: str | Path,
    *,
    option: str = "",
    trust_remote_code: bool = False,
    local: bool = False,
    light: bool = False,
) -> Any:
    """Read a model's tokenizer through transformers.

    Args:
        model: A folder, or a name of the hub.
        option: The option that named it, for messages.
        trust_remote_code: As transformers means it.
        local: Never ask the hub.
        light: Where tokenizer.json is all there is to it, spare the process importing torch.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    try:
        if light and _is_plain(Path(model)):
            from transformers import PreTrainedTokenizerFast as Loader
        else:
            from transformers import AutoTokenizer as Loader
    except ImportError:
        raise MissingExtra("transformers", "compress") from None
    if Path(model).is_dir() and not has_tokenizer(Path(model)):
        where = f"{option} {model}".strip()
        raise InputError(
            f"{where}: no tokenizer in it; copy tokenizer.json and tokenizer_config.json beside the"
            " model"
        )
    with read_by_library(model, option=option, what="its tokenizer"):
        return Loader.from_pretrained(
            model, trust_remote_code=trust_remote_code, local_files_only=local
        )


def _is_plain(folder: Path) -> bool:
    """Whether tokenizer.json is all there is to the tokenizer: no class of its own."""
    try:
        config = read_json(folder / "tokenizer_config.json", dict[str, Any])
    except InputError:
        return False
    return config.get("tokenizer_class") in PLAIN_CLASSES
