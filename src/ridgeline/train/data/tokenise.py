"""One process that turns pieces of a source into token shards.

`preparation.py` runs several at once, each as `python -m ridgeline.train.data.tokenise`: a
`TokeniseJob` comes first on standard input, then one `Piece` per line; every line of standard
output is a `TokeniseEvent`. It imports no torch. End of input ends it, so it does not outlive the
process that started it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ridgeline.checkpoints.tokenizer import read_tokenizer
from ridgeline.errors import InputError
from ridgeline.records.store import write_record
from ridgeline.train.data.shards import Shard, ShardWriter
from ridgeline.train.data.sources import DocumentPart, NotText, Span, read

_GROUP_CHARACTERS = 2**20
"""Documents are tokenised together up to about so much text."""


class TokeniseJob(msgspec.Struct, frozen=True, kw_only=True):
    """What all pieces of a preparation have in common."""

    folder: str
    tokenizer: str
    """Folder of the saved tokenizer."""
    column: str
    holdout: int
    end_of_document: int
    token_bytes: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What one shard is made of."""

    number: int
    spans: tuple[Span, ...]


class PieceDone(msgspec.Struct, frozen=True, kw_only=True):
    """The note beside the shards of a piece that says that they are whole."""

    number: int
    train: Shard
    validation: Shard | None
    skipped: tuple[str, ...]


class TokeniseEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process tells of its work, one line each."""

    text_bytes: int = 0
    """Bytes of text read since the last event."""
    tokens: int = 0
    done: PieceDone | None = None
    problem: str = ""
    """What was wrong with its text; empty: nothing."""


Encode = Callable[[Sequence[str]], list[np.ndarray[Any, Any]]]


def encoder(folder: Path) -> Encode:
    """Text to ids, without special tokens; fast tokenizers need no transformers."""
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
        fast.no_truncation()
        fast.no_padding()

        def encode(texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
            found = fast.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.asarray(one.ids, np.uint32) for one in found]

        return encode
    slow = read_tokenizer(folder)

    def encode_slowly(texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        found = slow(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [np.asarray(ids, np.uint32) for ids in found]

    return encode_slowly


def is_held_out(part: DocumentPart, holdout: int) -> bool:
    """Whether a document is for validation: by a hash of its file's name, else of its text."""
    if not holdout:
        return False
    digest = hashlib.blake2b((part.name or part.text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % holdout == 0


def tokenise(
    job: TokeniseJob, encode: Encode, piece: Piece, news: Callable[[TokeniseEvent], None]
) -> PieceDone:
    """Write the shards of one piece."""
    folder = Path(job.folder)
    writers = {False: ShardWriter(folder, f"train-{piece.number:05d}", job.token_bytes)}
    if job.holdout:
        writers[True] = ShardWriter(folder, f"validation-{piece.number:05d}", job.token_bytes)
    skipped: list[str] = []
    try:
        for parts in _groups(piece, job.column, skipped):
            tokens = encode([part.text for part in parts])
            for part, ids in zip(parts, tokens, strict=True):
                whole = np.append(ids, np.uint32(job.end_of_document)) if part.last else ids
                writer = writers[is_held_out(part, job.holdout)]
                writer.add(whole, starts_document=part.first)
            news(
                TokeniseEvent(
                    text_bytes=sum(len(part.text.encode()) for part in parts),
                    tokens=sum(map(len, tokens)),
                )
            )
        done = PieceDone(
            number=piece.number,
            train=writers[False].close(),
            validation=writers[True].close() if job.holdout else None,
            skipped=tuple(skipped),
        )
    except BaseException:
        for writer in writers.values():
            writer.discard()
        raise
    write_record(done_path(folder, piece.number), done)
    return done


def done_path(folder: Path, number: int) -> Path:
    """Where a finished piece is noted."""
    return folder / f"piece-{number:05d}.json"


def _groups(piece: Piece, column: str, skipped: list[str]) -> Iterator[list[DocumentPart]]:
    """Documents by the megabyte: many small ones are tokenised in one call."""
    gathered: list[DocumentPart] = []
    characters = 0
    for span in piece.spans:
        try:
            for part in read(span, column):
                if not part.text:
                    continue
                gathered.append(part)
                characters += len(part.text)
                if characters >= _GROUP_CHARACTERS:
                    yield gathered
                    gathered, characters = [], 0
        except NotText:
            skipped.append(span.name)
    if gathered:
        yield gathered


def main() -> None:
    """Work through pieces until there are no more."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    lines = sys.stdin.buffer

    def news(event: TokeniseEvent) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        sys.stdout.buffer.flush()

    job = msgspec.json.decode(lines.readline(), type=TokeniseJob)
    encode = encoder(Path(job.tokenizer))
    for line in lines:
        piece = msgspec.json.decode(line, type=Piece)
        try:
            done = tokenise(job, encode, piece, news)
        except InputError as error:
            news(TokeniseEvent(problem=str(error)))
            return
        news(TokeniseEvent(done=done))


if __name__ == "__main__":
    main()
