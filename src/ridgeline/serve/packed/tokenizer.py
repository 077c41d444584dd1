"""A tokenizer as transformers read it, kept so that the next start reads it without transformers.

What a server does with most requests is the business of the `tokenizers` library, which imports in
a fiftieth of the time. Kept is what transformers made of a folder: the tokenizer proper as it
serialises itself, special tokens, the chat template. Whatever else is asked of it (templates
rendered, grammars compiled) brings in transformers' own at that moment.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.checkpoints.tokenizer import has_tokenizer, read_tokenizer, tokenizer_files
from ridgeline.errors import in_words
from ridgeline.hardware.environment import installed
from ridgeline.records.store import whole_file
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.packed import entries

LAYOUT = 1
"""Raise it when what is kept changes its meaning."""
_READING = threading.Lock()
"""Two threads that import transformers get half a module."""
_LIBRARIES = ("transformers", "tokenizers", "ridgeline")
_BESIDE = ("config.json", "chat_template.jinja")
"""Files that decide what transformers makes of a tokenizer's own."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What transformers made of a tokenizer's files."""

    key: str
    backend: str
    """The tokenizer proper, as it serialises itself."""
    class_name: str
    chat_template: str | dict[str, str] | None
    special_tokens_map: dict[str, str | list[str]]
    all_special_tokens: list[str]


class KeptTokenizer:
    """Does by itself what most requests need; for anything else it has transformers' tokenizer."""

    is_fast = True

    def __init__(self, kept: _Kept, config: EngineConfig) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_str(kept.backend)
        self.class_name = kept.class_name
        self.chat_template = kept.chat_template
        self.special_tokens_map = kept.special_tokens_map
        self.all_special_tokens = kept.all_special_tokens
        self._config = config
        self._whole: Any = None

    @property
    def whole(self) -> Any:
        """Transformers' own, read when it is first needed, from whichever thread."""
        with _READING:
            if self._whole is None:
                self._whole = _read_whole(self._config, light=True)
            return self._whole

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, **_: Any) -> str:
        """The text of some tokens."""
        text: str = self.backend_tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens
        )
        return text

    def get_vocab(self) -> dict[str, int]:
        """All tokens and their ids."""
        vocab: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocab

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Tokens beside the vocabulary proper, by id."""
        found: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return found

    def __call__(self, *texts: Any, **options: Any) -> Any:
        """What transformers' own makes of texts."""
        return self.whole(*texts, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole, name)


def whole_tokenizer(tokenizer: Any) -> Any:
    """Transformers' own of a tokenizer that may be a kept one."""
    return tokenizer.whole if isinstance(tokenizer, KeptTokenizer) else tokenizer


def kept_tokenizer(config: EngineConfig, *, light: bool = False) -> Any:
    """The tokenizer that a configuration names, or its model's: kept, or read and kept.

    Args:
        config: Of the engine.
        light: As `read_tokenizer` has it.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    folder = Path(config.tokenizer or config.model)
    if config.trust_remote_code or not config.packed_cache or not has_tokenizer(folder):
        return _read_whole(config, light=light)
    weights = sum(path.stat().st_size for path in Path(config.model).glob("*.safetensors"))
    if weights < entries.LEAST_BYTES:
        return _read_whole(config, light=light)
    try:
        key = _key_of(folder)
    except OSError:  # whoever reads the files says what is wrong
        return _read_whole(config, light=light)
    path = entries.folder() / f"{entries.name_for_people(folder)}-{key}{entries.TOKENIZER_SUFFIX}"
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        if kept.key == key:
            found = KeptTokenizer(kept, config)
            entries.touch(path)
            return found
        why = "it is of another model"
    except (FileNotFoundError, NotADirectoryError):
        why = ""
    except Exception as error:  # the tokenizers library raises no type of its own
        why = in_words(error)
    if why:
        sys.stderr.write(f"ridgeline: the kept tokenizer is made anew: {path}: {why}\n")
    whole = _read_whole(config, light=light)
    _keep(path, key, whole)
    return whole


def _keep(path: Path, key: str, whole: Any) -> None:
    """Write a tokenizer's entry, where all that requests need of it can be kept."""
    if not whole.is_fast or (whole.clean_up_tokenization_spaces and not _is_bpe(whole)):
        return  # text that is cleaned up afterwards is transformers' business
    kept = _Kept(
        key=key,
        backend=whole.backend_tokenizer.to_str(),
        class_name=type(whole).__name__,
        chat_template=whole.chat_template,
        special_tokens_map={
            name: [str(one) for one in value] if isinstance(value, (list, tuple)) else str(value)
            for name, value in whole.special_tokens_map.items()
        },
        all_special_tokens=[str(one) for one in whole.all_special_tokens],
    )
    content = msgspec.json.encode(kept)
    if entries.no_room_for(len(content)) is not None:
        return  # the weights say so, in one line
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError:  # the next start reads it as this one did
        return
    entries.make_room()


def _is_bpe(whole: Any) -> bool:
    return type(whole.backend_tokenizer.model).__name__ == "BPE"


def _read_whole(config: EngineConfig, *, light: bool) -> Any:
    option = "" if config.tokenizer is None else "--tokenizer"
    return read_tokenizer(
        config.tokenizer or config.model,
        option=option,
        trust_remote_code=config.trust_remote_code,
        light=light,
    )


def _key_of(folder: Path) -> str:
    """A digest of everything that a tokenizer depends on."""
    versions = [f"{name}=={installed(name)}" for name in _LIBRARIES]
    digest = hashlib.sha256("\n".join([str(LAYOUT), *versions]).encode())
    beside = [folder / name for name in _BESIDE]
    templates = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    for path in (*tokenizer_files(folder), *(one for one in beside if one.is_file()), *templates):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:24]
