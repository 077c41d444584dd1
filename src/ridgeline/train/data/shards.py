"""Token shards on disk, which are written once and then read through the page cache.

A prepared folder holds

    manifest.json              `ShardManifest`: what was read, with which tokenizer, every shard
    tokenizer/                 the tokenizer, as transformers saves it
    train-00000.tokens         token ids, little endian, uint16 or uint32
    train-00000.documents      int64: where in this shard documents begin
    validation-00000.tokens …  the documents that were held out

A document ends with the end-of-document token. One that is cut over two shards begins in the first
alone, so the stream of all shards, in order, is the corpus.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ridgeline.errors import InputError
from ridgeline.records.store import read_record

FORMAT = "ridgeline-tokens-1"

Tokens = npt.NDArray[np.integer]
Indices = npt.NDArray[np.int64]


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pair of files."""

    name: str
    tokens: int
    documents: int
    """Documents that begin in it."""
    tokens_checksum: str
    documents_checksum: str
    """BLAKE2b, 16 bytes, of each file."""


class ShardManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a prepared folder holds. It is written last: a folder that has one is complete."""

    format: str
    source: str
    """Path that was read."""
    fingerprint: str
    """Checksum of the files read (names, sizes, times), the tokenizer and the options."""
    tokenizer: str
    """Checksum of the tokenizer's files."""
    vocabulary: int
    """Ids that the tokenizer can give: the model's vocabulary is at least as large."""
    end_of_document: int
    token_bytes: Literal[2, 4]
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]
    skipped: tuple[str, ...] = ()
    """Files that held no text (they are not UTF-8)."""

    @property
    def identity(self) -> str:
        """Checksum of the tokens alone: equal on every machine that prepared the same text."""
        digest = hashlib.blake2b(digest_size=16)
        for shard in (*self.train, *self.validation):
            digest.update(f"{shard.name} {shard.tokens_checksum}\n".encode())
        return digest.hexdigest()


def always_there(folder: Path, shard: Shard) -> bool:
    """The files of a folder that was prepared here."""
    del folder, shard
    return False


def token_type(token_bytes: int) -> np.dtype[np.unsignedinteger]:
    """The type that tokens have in the file."""
    return np.dtype("<u2" if token_bytes == 2 else "<u4")


class ShardWriter:
    """A writer of one shard, which has its own name only once `close` has returned."""

    def __init__(self, folder: Path, name: str, token_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._type = token_type(token_bytes)
        self._tokens = _Sink(folder / f"{name}.tokens")
        self._documents = _Sink(folder / f"{name}.documents")
        self._num_tokens = 0
        self._num_documents = 0

    def add(self, tokens: npt.NDArray[np.integer], *, starts_document: bool) -> None:
        """Append a document, or a further part of one."""
        if starts_document:
            self._documents.write(np.asarray([self._num_tokens], "<i8").tobytes())
            self._num_documents += 1
        self._tokens.write(tokens.astype(self._type).tobytes())
        self._num_tokens += len(tokens)

    def close(self) -> Shard:
        """Flush to disk and rename."""
        return Shard(
            name=self._name,
            tokens=self._num_tokens,
            documents=self._num_documents,
            tokens_checksum=self._tokens.close(),
            documents_checksum=self._documents.close(),
        )

    def discard(self) -> None:
        """Delete what was written so far."""
        self._tokens.discard()
        self._documents.discard()


class _Sink:
    """One file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._digest = hashlib.blake2b(digest_size=16)
        self._file: BinaryIO = self._temporary.open("wb", buffering=2**20)

    def write(self, content: bytes) -> None:
        self._digest.update(content)
        self._file.write(content)

    def close(self) -> str:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._path)
        return self._digest.hexdigest()

    def discard(self) -> None:
        with suppress(OSError):  # a full disk takes what is left in the buffer no better now
            self._file.close()
        self._temporary.unlink(missing_ok=True)


@dataclass(slots=True, kw_only=True)
class TokenStream:
    """All shards of one split as one long array, mapped when they are first touched.

    It can be sent to another process: maps are not sent with it.
    """

    folder: Path
    shards: tuple[Shard, ...]
    token_bytes: int
    token_ends: Indices
    document_ends: Indices
    bring: Callable[[Path, Shard], bool] = always_there
    """Sees to it that a shard's files are there; whether older ones may go meanwhile."""
    _maps: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folder: Path,
        shards: tuple[Shard, ...],
        token_bytes: int,
        bring: Callable[[Path, Shard], bool] = always_there,
    ) -> TokenStream:
        """The stream of these shards."""
        return cls(
            bring=bring,
            folder=folder,
            shards=shards,
            token_bytes=token_bytes,
            token_ends=np.cumsum([shard.tokens for shard in shards], dtype=np.int64),
            document_ends=np.cumsum([shard.documents for shard in shards], dtype=np.int64),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole stream."""
        return int(self.token_ends[-1]) if len(self.token_ends) else 0

    @property
    def num_documents(self) -> int:
        """Documents of the whole stream."""
        return int(self.document_ends[-1]) if len(self.document_ends) else 0

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens `start` … `stop - 1` of the stream; fewer at its end."""
        stop = min(stop, self.num_tokens)
        if start >= stop:
            return np.empty(0, token_type(self.token_bytes))
        number = int(np.searchsorted(self.token_ends, start, side="right"))
        parts = []
        while start < stop:
            end = int(self.token_ends[number])
            begin = end - self.shards[number].tokens
            parts.append(self._map(number)[0][start - begin : min(stop, end) - begin])
            start, number = end, number + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def gather(self, starts: Indices, stops: Indices, out: Tokens) -> None:
        """Write tokens `starts[i]` … `stops[i] - 1`, all of them there, to the head of row i."""
        numbers = np.searchsorted(self.token_ends, starts, side="right")
        begins, ends = np.append(0, self.token_ends)[numbers], self.token_ends[numbers]
        places = (numbers, starts - begins, stops - begins, stops <= ends)
        for row, (number, first, last, inside) in enumerate(
            zip(*(place.tolist() for place in places), strict=True)
        ):
            if inside:
                out[row, : last - first] = self._map(number)[0][first:last]
            else:
                out[row, : last - first] = self.read(int(starts[row]), int(stops[row]))

    def document_start(self, document: int) -> int:
        """Where in the stream a document begins; past the last one, the stream's end."""
        if document >= self.num_documents:
            return self.num_tokens
        number = int(np.searchsorted(self.document_ends, document, side="right"))
        shard = self.shards[number]
        local = document - (int(self.document_ends[number]) - shard.documents)
        return int(self.token_ends[number]) - shard.tokens + int(self._map(number)[1][local])

    def starts_within(self, start: int, stop: int) -> Indices:
        """Where documents begin, of `start` … `stop - 1`, counted from `start`."""
        number = int(np.searchsorted(self.token_ends, start, side="right"))
        found = []
        while number < len(self.shards):
            begin = int(self.token_ends[number]) - self.shards[number].tokens
            if begin >= stop:
                break
            starts = self._map(number)[1]
            first, last = np.searchsorted(starts, [start - begin, stop - begin])
            found.append(starts[first:last] + (begin - start))
            number += 1
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _map(self, number: int) -> tuple[Any, Any]:
        found = self._maps.get(number)
        if found is None:
            shard = self.shards[number]
            if self.bring(self.folder, shard):
                # What is mapped takes room on the disk even where its name is gone.
                self._maps.clear()
            try:
                found = self._opened(shard)
            except FileNotFoundError:  # another process made room for its own
                self.bring(self.folder, shard)
                found = self._opened(shard)
            self._maps[number] = found
        return found

    def _opened(self, shard: Shard) -> tuple[Any, Any]:
        path = self.folder / shard.name
        return (
            _mapped(path.with_suffix(".tokens"), token_type(self.token_bytes)),
            _mapped(path.with_suffix(".documents"), np.dtype("<i8")),
        )

    def __getstate__(self) -> tuple[object, ...]:
        ends = (self.token_ends, self.document_ends)
        return (self.folder, self.shards, self.token_bytes, *ends, self.bring)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        names = ("folder", "shards", "token_bytes", "token_ends", "document_ends", "bring")
        for name, value in zip(names, state, strict=True):
            setattr(self, name, value)
        self._maps = {}


def _mapped(path: Path, kind: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    if not path.stat().st_size:
        return np.empty(0, kind)
    # Without the subclass: each slice of a memmap costs microseconds.
    return np.asarray(np.memmap(path, kind, mode="r"))


def read_manifest(folder: Path, *, whole: bool = True) -> ShardManifest:
    """The manifest of a prepared folder, after a look at the size of every file.

    Args:
        folder: That was prepared, or the cache of one.
        whole: Whether every shard is to be there.

    Raises:
        InputError: A file is missing or has another size than was written.
    """
    path = folder / "manifest.json"
    manifest = read_record(path, ShardManifest)
    if manifest.format != FORMAT:
        raise InputError(f"{path}: format {manifest.format!r}, this reads {FORMAT!r}; prepare anew")
    for shard in (*manifest.train, *manifest.validation) if whole else ():
        check_sizes(folder, shard, manifest.token_bytes)
    return manifest


def check_sizes(folder: Path, shard: Shard, token_bytes: int) -> None:
    """Raise an InputError where a file of the shard is missing or cut off."""
    for suffix, size in (
        ("tokens", shard.tokens * token_bytes),
        ("documents", shard.documents * 8),
    ):
        path = folder / f"{shard.name}.{suffix}"
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            seen = "is missing" if found is None else f"has {found} bytes"
            raise InputError(
                f"{path} {seen} and should have {size}; delete {folder} to make it anew"
            )


def check_contents(folder: Path, shard: Shard) -> None:
    """Raise an InputError where a file of the shard is not what was written."""
    for suffix, written in (
        ("tokens", shard.tokens_checksum),
        ("documents", shard.documents_checksum),
    ):
        path = folder / f"{shard.name}.{suffix}"
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        if found != written:
            raise InputError(
                f"{path} is damaged (checksum {found}, written {written}); delete {folder} to make"
                " it anew"
            )
