"""Turn text into token shards: in parallel, resumable, and only once while nothing changes.

Each source gets a folder below the one given, named after a fingerprint of its files (names, sizes,
times of change), its tokenizer and the options that change tokens. Processes that want the same
folder wait for the first. Pieces that were finished before a crash are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe, RecipeData, RecipeSource
from ridgeline.records.store import read_record, write_record
from ridgeline.train.data import tokenizer as tokenizers
from ridgeline.train.data.remote import REMOTE, bring, is_remote, open_remote
from ridgeline.train.data.shards import (
    FORMAT,
    Shard,
    ShardManifest,
    TokenStream,
    check_contents,
    check_sizes,
    read_manifest,
)
from ridgeline.train.data.sources import NotText, SourceFile, cut, find_files, read
from ridgeline.train.data.tokenise import (
    Piece,
    PieceDone,
    TokeniseEvent,
    TokeniseJob,
    done_path,
    is_held_out,
)
from ridgeline.train.data.workers import run_pieces

OnProgress = Callable[[str], None]
_LEARN_FROM_BYTES = 2**29
"""A tokenizer is learnt from about so much text at most; documents are drawn by a hash."""
_TELL_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Token shards, ready to be read; it can be sent to another process."""

    sources: tuple[TokenStream, ...]
    weights: tuple[float, ...]
    validation: TokenStream | None
    tokenizer: Path
    """Folder of the tokenizer, as transformers saves it."""
    vocabulary: int
    """Ids that occur are below it: a model needs a vocabulary of at least this."""
    end_of_document: int
    identity: str
    """Checksum of all training tokens; equal wherever the same text was prepared."""

    @property
    def num_tokens(self) -> int:
        """Tokens for training, once each."""
        return sum(source.num_tokens for source in self.sources)


def prepare(recipe: Recipe, folder: Path, on_progress: OnProgress) -> PreparedData:
    """Make or find the token shards of a recipe.

    Args:
        recipe: `data` says what is read, `model` where a tokenizer may be.
        folder: Where shards are kept from run to run.
        on_progress: Called with one line, twice a second at most.

    Raises:
        InputError: There is nothing to read, it cannot be read, or no tokenizer is known.
    """
    data = recipe.text
    sources = _sources(data)
    folder.mkdir(parents=True, exist_ok=True)
    folders = [_local(source.path, folder, data.cache_bytes) for source in sources]
    ready = {path for path in folders if (path / "manifest.json").is_file()}
    files = [
        [] if path in ready else find_files(path, data.pattern, data.exclude) for path in folders
    ]
    held = _local(data.validation, folder, data.cache_bytes) if data.validation else None
    name = "" if ready == set(folders) else _tokenizer(recipe, files, folder, on_progress)
    found = [
        path if path in ready else _prepare_source(path, some, data, name, folder, on_progress)
        for path, some in zip(folders, files, strict=True)
    ]
    manifests = [_manifest(path) for path in found]
    _check_one_tokenizer(found, manifests)
    validation = _held_out(found, manifests)
    if held is not None:
        validation = _validation(
            held, data, name or str(found[0] / "tokenizer"), folder, on_progress
        )
    return PreparedData(
        sources=tuple(
            TokenStream.of(path, manifest.train, manifest.token_bytes, bring)
            for path, manifest in zip(found, manifests, strict=True)
        ),
        weights=tuple(source.weight for source in sources),
        validation=validation,
        tokenizer=found[0] / "tokenizer",
        vocabulary=manifests[0].vocabulary,
        end_of_document=manifests[0].end_of_document,
        identity=hashlib.blake2b(
            " ".join(manifest.identity for manifest in manifests).encode(), digest_size=16
        ).hexdigest(),
    )


def verify(prepared: PreparedData) -> None:
    """Read every shard and compare checksums.

    Raises:
        InputError: A file is not what was written; the message names it.
    """
    streams = [*prepared.sources, *([prepared.validation] if prepared.validation else [])]
    for stream in streams:
        for shard in stream.shards:
            check_sizes(stream.folder, shard, stream.token_bytes)
            check_contents(stream.folder, shard)


def _sources(data: RecipeData) -> tuple[RecipeSource, ...]:
    if data.path and data.sources:
        raise InputError("data: both path and sources are given; keep one of them")
    if not data.path and not data.sources:
        raise InputError("data.path is empty; name a file or folder of text to train on")
    return data.sources or (RecipeSource(path=data.path),)


def _tokenizer(
    recipe: Recipe, files: list[list[SourceFile]], folder: Path, on_progress: OnProgress
) -> str:
    """Folder or hub name of the tokenizer; `bpe:SIZE` is learnt here, once."""
    data = recipe.text
    name = tokenizers.tokenizer_name(recipe)
    size = tokenizers.vocabulary_wanted(name)
    if size is None:
        return name
    key = _fingerprint([name, data.column, data.holdout], [one for some in files for one in some])
    learnt = folder / f"tokenizer-{key[:16]}"
    with _locked(folder / f".tokenizer-{key[:16]}.lock"):
        if not learnt.is_dir():
            on_progress(f"learning a tokenizer of {size:,} tokens")
            tokenizers.train_tokenizer(_texts(files, data), size, learnt)
    return str(learnt)


def _texts(files: list[list[SourceFile]], data: RecipeData) -> Iterator[str]:
    """Documents that are trained on; where they are more than enough, some by a hash."""
    total = sum(file.size_bytes for some in files for file in some)
    kept = max(1, -(-total // _LEARN_FROM_BYTES))
    for some in files:
        for piece in cut(some) if some else []:
            for span in piece:
                try:
                    for number, part in enumerate(read(span, data.column)):
                        chosen = (span.start + number) % kept == 0
                        if chosen and not is_held_out(part, data.holdout):
                            yield part.text
                except NotText:
                    continue


def _prepare_source(
    path: Path,
    files: list[SourceFile],
    data: RecipeData,
    name: str,
    folder: Path,
    on_progress: OnProgress,
) -> Path:
    """The prepared folder of one source."""
    fingerprint = _fingerprint(
        [FORMAT, tokenizers.checksum(name), data.column, data.holdout], files
    )
    target = folder / f"{path.stem}-{fingerprint[:16]}"
    if (target / "manifest.json").is_file():
        return target
    with _locked(folder / f".{target.name}.lock"):
        if not (target / "manifest.json").is_file():
            target.mkdir(exist_ok=True)
            _tokenise(target, path, files, (data, name, fingerprint), on_progress)
    return target


def _tokenise(
    target: Path,
    path: Path,
    files: list[SourceFile],
    wanted: tuple[RecipeData, str, str],
    on_progress: OnProgress,
) -> None:
    data, name, fingerprint = wanted
    for left in target.glob(".*.tmp"):
        left.unlink()
    kept = tokenizers.keep(name, target / "tokenizer")
    job = TokeniseJob(
        folder=str(target),
        tokenizer=str(target / "tokenizer"),
        column=data.column,
        holdout=data.holdout,
        end_of_document=kept.end_of_document,
        token_bytes=2 if kept.vocabulary <= 2**16 else 4,
    )
    pieces = [Piece(number=i, spans=spans) for i, spans in enumerate(cut(files))]
    done = {piece.number: found for piece in pieces if (found := _finished(job, piece))}
    progress = _Progress(path.name, pieces, done, on_progress)
    for event in run_pieces(job, [piece for piece in pieces if piece.number not in done]):
        if event.done is not None:
            done[event.done.number] = event.done
        progress.add(event)
    ordered = [done[piece.number] for piece in pieces]
    manifest = ShardManifest(
        format=FORMAT,
        source=str(path),
        fingerprint=fingerprint,
        tokenizer=tokenizers.checksum(str(target / "tokenizer")),
        vocabulary=kept.vocabulary,
        end_of_document=job.end_of_document,
        token_bytes=2 if kept.vocabulary <= 2**16 else 4,
        train=_with_tokens([one.train for one in ordered]),
        validation=_with_tokens([one.validation for one in ordered if one.validation]),
        skipped=tuple(skip for one in ordered for skip in one.skipped),
    )
    _check_not_empty(manifest, path, data)
    write_record(target / "manifest.json", manifest)
    progress.finish(manifest)


def _with_tokens(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    return tuple(shard for shard in shards if shard.tokens)


def _check_not_empty(manifest: ShardManifest, path: Path, data: RecipeData) -> None:
    if not manifest.train and not manifest.validation:
        why = f" ({len(manifest.skipped)} files are not UTF-8)" if manifest.skipped else ""
        raise InputError(f"data.path: {path} holds no text{why}")
    if not manifest.train or (data.holdout and not manifest.validation):
        split = "validation" if manifest.train else "training"
        raise InputError(
            f"data.holdout: one document in {data.holdout} of {path} leaves none for {split};"
            " change it, or set data.validation"
        )


def _finished(job: TokeniseJob, piece: Piece) -> PieceDone | None:
    """What was left by an earlier attempt, where it is whole."""
    folder = Path(job.folder)
    path = done_path(folder, piece.number)
    if not path.is_file():
        return None
    done = read_record(path, PieceDone, ours=True)
    for shard in (done.train, *([done.validation] if done.validation else [])):
        check_sizes(folder, shard, job.token_bytes)
    return done


def _fingerprint(options: list[str | int], files: list[SourceFile]) -> str:
    facts = [options, [(f.name, f.kind, f.size_bytes, f.changed_nanoseconds) for f in files]]
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()


def _check_one_tokenizer(folders: list[Path], manifests: list[ShardManifest]) -> None:
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.tokenizer != manifests[0].tokenizer:
            raise InputError(
                f"{folder} was prepared with another tokenizer than {folders[0]}; prepare one of"
                " them anew"
            )


def _held_out(folders: list[Path], manifests: list[ShardManifest]) -> TokenStream | None:
    """What was held out of all sources, as one stream."""
    shards = [
        msgspec.structs.replace(shard, name=os.path.join(folder, shard.name))
        for folder, manifest in zip(folders, manifests, strict=True)
        for shard in manifest.validation
    ]
    if not shards:
        return None
    return TokenStream.of(Path(), tuple(shards), manifests[0].token_bytes, bring)


def _validation(
    held: Path, data: RecipeData, name: str, folder: Path, on_progress: OnProgress
) -> TokenStream:
    if not (held / "manifest.json").is_file():
        whole = msgspec.structs.replace(data, holdout=0)
        held = _prepare_source(
            held, find_files(held, data.pattern, data.exclude), whole, name, folder, on_progress
        )
    manifest = _manifest(held)
    return TokenStream.of(held, manifest.train, manifest.token_bytes, bring)


def _local(path: str, folder: Path, cache_bytes: float | None) -> Path:
    """A path as it is; of an address, the cache below `folder`."""
    return open_remote(path, folder, cache_bytes) if is_remote(path) else Path(path).expanduser()


def _manifest(folder: Path) -> ShardManifest:
    """The manifest of a folder; of a cache, shards may be missing."""
    return read_manifest(folder, whole=not (folder / REMOTE).is_file())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process in at a time; the lock goes with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Progress:
    """What is told of one source's progress, not too often."""

    def __init__(
        self, name: str, pieces: list[Piece], done: dict[int, PieceDone], on_progress: OnProgress
    ) -> None:
        weights = {p.number: sum(span.weight_bytes for span in p.spans) for p in pieces}
        self._name = name
        self._on_progress = on_progress
        self._total_bytes = sum(weights.values())
        self._bytes = sum(weights[number] for number in done)
        self._tokens = 0
        self._started = self._told = time.monotonic()
        if done:
            on_progress(f"{name}: {len(done)} of {len(pieces)} pieces were tokenised before")

    def add(self, event: TokeniseEvent) -> None:
        self._bytes += event.text_bytes
        self._tokens += event.tokens
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY_SECONDS:
            self._told = now
            self._on_progress(
                f"{self._name}: {quantity.memory(self._bytes)} of"
                f" {quantity.memory(self._total_bytes)} tokenised,"
                f" {self._tokens / (now - self._started):,.0f} tokens/s"
            )

    def finish(self, manifest: ShardManifest) -> None:
        tokens = sum(shard.tokens for shard in manifest.train)
        documents = sum(shard.documents for shard in manifest.train)
        held = sum(shard.documents for shard in manifest.validation)
        text = f"{self._name}: {tokens:,} tokens in {documents:,} documents"
        text += f", {held:,} documents held out" if held else ""
        if manifest.skipped:
            some = ", ".join(manifest.skipped[:3])
            text += f"; {len(manifest.skipped)} files are not UTF-8 and were passed over ({some})"
        self._on_progress(text)
