"""Which tokenizer a recipe means, and a new one from the training text.

`data.tokenizer` is a folder, a name on the hub, or `bpe:2048`: a byte-level BPE of so many tokens,
learnt from the training text (Radford et al. 2019, section 2.2, through `tokenizers`).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.checkpoints.tokenizer import PLAIN_CLASSES, read_tokenizer, tokenizer_files
from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.records.input_file import read_json
from ridgeline.records.recipe import Recipe

BEGIN, END, PADDING = "<|begin|>", "<|end|>", "<|padding|>"
_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_PLAIN_KEYS = {
    *_SPECIAL,
    "backend",
    "clean_up_tokenization_spaces",
    "model_input_names",
    "model_max_length",
    "padding_side",
    "tokenizer_class",
    "truncation_side",
}
"""Settings with which transformers takes tokenizer.json as it is; others may change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What shards need to know of the tokenizer that was saved beside them."""

    vocabulary: int
    end_of_document: int


def tokenizer_name(recipe: Recipe) -> str:
    """What the recipe says, or the folder that its model comes from.

    Raises:
        InputError: Neither has one.
    """
    if recipe.text.tokenizer:
        return recipe.text.tokenizer
    for place in (recipe.model.checkpoint, recipe.model.config):
        path = Path(place).expanduser()
        folder = path.parent if path.suffix == ".json" else path
        if place and tokenizer_files(folder):
            return str(folder)
    raise InputError(
        f"data.tokenizer is empty, and the model {recipe.model.config!r} brings none; name a folder"
        ' or a hub model, or "bpe:32768" to learn one from the training text'
    )


def vocabulary_wanted(name: str) -> int | None:
    """The size that `bpe:SIZE` asks for; None for any other tokenizer.

    >>> vocabulary_wanted("bpe:2048"), vocabulary_wanted("gpt2")
    (2048, None)
    """
    kind, found, size = name.partition(":")
    if kind != "bpe" or not found:
        return None
    if not size.isdecimal() or int(size) < 260:
        raise InputError(
            f"data.tokenizer: {name!r} should be bpe:SIZE with a size of 260 or more (256 bytes and"
            " the special tokens)"
        )
    return int(size)


def checksum(name: str) -> str:
    """Checksum of a tokenizer's files; of its name where it is fetched by one."""
    digest = hashlib.blake2b(digest_size=16)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return hashlib.blake2b(f"hub:{name}".encode(), digest_size=16).hexdigest()
    for path in tokenizer_files(folder):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or of a hub name.

    Raises:
        InputError: There is none.
    """
    folder = Path(name).expanduser()
    try:
        return read_tokenizer(folder if folder.is_dir() else name)
    except InputError as error:
        raise _not_loaded(name, error) from None


def keep(name: str, folder: Path) -> Kept:
    """Save the tokenizer of a folder or of a hub name to `folder`, as transformers does.

    Raises:
        InputError: There is none, or it has no end-of-text token.
    """
    kept = _keep_plain(Path(name).expanduser(), folder)
    if kept is not None:
        return kept
    tokenizer = load_tokenizer(name)
    if tokenizer.eos_token_id is None:
        raise _no_end(name)
    tokenizer.save_pretrained(folder)
    return Kept(vocabulary=len(tokenizer), end_of_document=int(tokenizer.eos_token_id))


def _keep_plain(source: Path, folder: Path) -> Kept | None:
    """Copy what transformers would only copy, without the seconds that its import takes.

    None where it would change something: classes of its own, tokens that it adds.
    """
    paths = [source / "tokenizer.json", source / "tokenizer_config.json"]
    unread = [source / "special_tokens_map.json", source / "added_tokens.json"]
    if not all(path.is_file() for path in paths) or any(path.is_file() for path in unread):
        return None
    try:
        settings = read_json(paths[1], dict[str, Any])
    except InputError:
        return None
    if settings.get("tokenizer_class") not in PLAIN_CLASSES or settings.keys() - _PLAIN_KEYS:
        return None
    from tokenizers import Tokenizer

    try:
        fast = Tokenizer.from_file(str(paths[0]))
    except Exception as error:  # tokenizers raises nothing narrower
        raise _not_loaded(str(source), error) from None
    added = {token.content: number for number, token in fast.get_added_tokens_decoder().items()}
    special = [settings[key] for key in _SPECIAL if settings.get(key) is not None]
    if not all(isinstance(token, str) and token in added for token in special):
        return None
    if settings.get("eos_token") is None:
        raise _no_end(str(source))
    folder.mkdir(exist_ok=True)
    for path in (*paths, source / "chat_template.jinja"):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    return Kept(
        vocabulary=fast.get_vocab_size(with_added_tokens=True),
        end_of_document=added[settings["eos_token"]],
    )


def _not_loaded(name: str, error: Exception) -> InputError:
    return InputError(
        f"data.tokenizer: {name!r} cannot be loaded ({in_words(error)}); give a folder with"
        " tokenizer.json"
    )


def _no_end(name: str) -> InputError:
    return InputError(
        f"data.tokenizer: {name!r} has no end-of-text token; set eos_token in its"
        " tokenizer_config.json"
    )


def train_tokenizer(texts: Iterable[str], vocabulary: int, folder: Path) -> None:
    """Learn a byte-level BPE and save it as transformers would, with begin, end and padding.

    Args:
        texts: Documents; they are passed over once.
        vocabulary: Its size, special tokens included.
        folder: Is there afterwards, whole.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtra("tokenizers", "train") from None
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learnt.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learnt.train_from_iterator(texts, trainer)
    settings = {
        "backend": "tokenizers",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PADDING,
        "tokenizer_class": "TokenizersBackend",
    }
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    learnt.save(str(temporary / "tokenizer.json"))
    described = msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
    (temporary / "tokenizer_config.json").write_bytes(described)
    temporary.rename(folder)
