"""Prepared token shards behind an address: each is fetched when it is first read, and kept.

    https://data.example.org/prepared     any web server that gives files
    s3://bucket/prepared, gs://…, az://…  through fsspec, with the library that it names

The address is a prepared folder (`shards.py`) as it lies in the `tokens/` of a run, uploaded as it
is. Its manifest says every file's size and checksum, so nothing has to be listed, a file that came
damaged is known, and the order of samples is that of the local folder: a run goes on bit for bit
with an empty cache, or with the address away as long as what it reads was fetched before.

The local folder is like a prepared one, with `remote.json` in it and shards as they come. A shard
has its own name only when all of it is there and right. Processes that want the same one wait for
the first. With `data.cache_bytes` the shards that were opened longest ago go.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.store import read_record, write_record
from ridgeline.train.data.shards import Shard

REMOTE, MANIFEST = "remote.json", "manifest.json"
ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
"""Before the second attempt; it doubles from one to the next."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
)
"""What transformers saves; an address cannot always be asked what is there."""


class RemoteSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cache folder knows of its origin."""

    url: str
    cache_bytes: float | None


def is_remote(path: str) -> bool:
    """Whether it is an address and no path.

    >>> is_remote("s3://bucket/prepared"), is_remote("text/prepared")
    (True, False)
    """
    return _ADDRESS.match(path) is not None


def open_remote(url: str, folder: Path, cache_bytes: float | None) -> Path:
    """The cache folder of an address, its manifest and tokenizer in it.

    Args:
        url: Of a prepared folder.
        folder: Where caches are kept.
        cache_bytes: The most that its shards may take; None: no bound.

    Raises:
        InputError: Nothing answers there, or it is no prepared folder.
    """
    url = url.rstrip("/")
    name = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
    target = folder / f"{url.rpartition('/')[2]}-{name}"
    target.mkdir(parents=True, exist_ok=True)
    write_record(target / REMOTE, RemoteSource(url=url, cache_bytes=cache_bytes))
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (target / MANIFEST).is_file():
            return target
        (target / "tokenizer").mkdir(exist_ok=True)
        found = [_fetch(url, f"tokenizer/{one}", target, optional=True) for one in _TOKENIZER]
        # The manifest comes last: a folder that has one is complete but for its shards.
        _fetch(url, MANIFEST, target)
        if not any(found):
            (target / MANIFEST).unlink()
            raise InputError(f"data.path: {url} has no tokenizer/; upload the whole folder")
    return target


def bring(folder: Path, shard: Shard) -> bool:
    """See to it that the files of a shard are there; whether the cache they lie in has a bound.

    Args:
        folder: Prepared here, or of `open_remote`.
        shard: Of the folder's manifest.

    Raises:
        InputError: It cannot be fetched, or is not what the manifest says.
    """
    path = folder / shard.name
    if not (path.parent / REMOTE).is_file():
        return False
    source = read_record(path.parent / REMOTE, RemoteSource, ours=True)
    written = {"documents": shard.documents_checksum, "tokens": shard.tokens_checksum}
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for suffix, checksum in written.items():
            if not path.with_suffix(f".{suffix}").is_file():
                _fetch(source.url, f"{path.name}.{suffix}", path.parent, checksum=checksum)
    os.utime(path.with_suffix(".tokens"))
    if source.cache_bytes is not None:
        _make_room(path, source.cache_bytes)
    return source.cache_bytes is not None


def _make_room(newest: Path, cache_bytes: float) -> None:
    """Remove the shards that were opened longest ago; whoever has one mapped reads on."""
    kept = sorted(newest.parent.glob("*.tokens"), key=lambda path: path.stat().st_mtime_ns)
    total = sum(path.stat().st_size for path in kept)
    for path in kept:
        if total <= cache_bytes or path.stem == newest.name:
            continue
        total -= path.stat().st_size
        path.unlink(missing_ok=True)


def _fetch(
    url: str, name: str, folder: Path, *, checksum: str | None = None, optional: bool = False
) -> bool:
    """Fetch one file; it is whole and right, or not there. Whether it was there to fetch."""
    cure = f"upload the folder again, and delete {folder}"
    written = KnownFile(_short_digest, checksum, "its manifest", cure)
    if fetch_file("data.path", f"{url}/{name}", folder / name, written):
        return True
    if optional:
        return False
    cure = "give the address of a prepared folder, such as one below a run's tokens/"
    raise InputError(f"data.path: {url} has no {name}; {cure}")


def _short_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


@dataclass(frozen=True, slots=True)
class KnownFile:
    """What a file must be."""

    digest: Callable[[], Any]
    """Makes the sum of `hashlib` that `checksum` is of."""
    checksum: str | None
    """The digits of that sum; None where nothing is known of the file."""
    said_by: str
    cure: str
    """What to do where it is another."""


def fetch_file(key: str, address: str, target: Path, written: KnownFile) -> bool:
    """Fetch one file, which is then whole and right, or not there; False: there is no such file.

    Args:
        key: What of the recipe named it.
        address: Of the file.
        target: Where it is kept.
        written: What it must be.

    Raises:
        InputError: It cannot be fetched, or is another file.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if not _tried(key, address, lambda: _get(address, temporary)):
            return False
        with temporary.open("rb") as file:
            found = hashlib.file_digest(file, written.digest).hexdigest()
            os.fsync(file.fileno())
        if written.checksum is not None and found != written.checksum:
            raise InputError(
                f"{key}: {address} is not what {written.said_by} says (checksum {found}, written"
                f" {written.checksum}); {written.cure}"
            )
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _tried(key: str, address: str, get: Callable[[], None]) -> bool:
    """Fetch, and again after a while where that fails; False: there is no such file."""
    for attempt in range(ATTEMPTS):
        try:
            get()
        except FileNotFoundError:
            return False
        except ImportError as error:
            raise InputError(
                f"{key}: {address}: {in_words(error)}; or give an https address, such as a"
                " presigned one"
            ) from None
        except PermissionError as error:
            raise InputError(
                f"{key}: {address}: {in_words(error)}; check the store's keys in the environment"
            ) from None
        except Exception as error:  # aiohttp's, botocore's and others': whichever library reads it
            if attempt == ATTEMPTS - 1:
                raise InputError(
                    f"{key}: {address}: {in_words(error)}; check the address and the network"
                ) from None
            time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
        else:
            return True
    raise AssertionError("an attempt fails or succeeds")


def _get(address: str, target: Path) -> None:
    import fsspec

    files, path = fsspec.core.url_to_fs(address)
    files.get_file(path, str(target))
