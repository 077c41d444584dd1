"""Documents from what a user has: text files, JSONL, Parquet, saved Hugging Face datasets.

A source is cut into pieces of a size that depends on the source alone, so that several processes
can read it and an interrupted preparation goes on with the pieces that are left. Nothing is read
whole: JSONL goes by lines, Parquet by batches of rows, a text file above 4 MiB by blocks that end
at a line (a tokenizer may there split a line break and what follows differently than in one go).
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.train.data.foreign_formats import foreign

Kind = Literal["text", "jsonl", "parquet", "dataset"]
SUFFIXES: dict[str, Kind] = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_SMALLEST_PIECE_BYTES = 2**20
_LARGEST_PIECE_BYTES = 2**27
_PIECES = 64
_BLOCK_BYTES = 4 * 2**20
_LINE_BYTES = 2**20
"""How far a cut looks for the end of a line."""
_ROWS = 512


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one file."""

    path: str
    name: str
    """Name of the file, relative to the source."""
    kind: Kind
    start: int
    stop: int
    """Bytes of text and JSONL, row groups of Parquet, rows of a dataset."""
    weight_bytes: int
    """Its share of the progress that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPart:
    """A document, or a part of one that is too large to hold."""

    name: str
    """Decides over holding out: the file's, where it is one document; else empty."""
    text: str
    first: bool = True
    last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a source, as the fingerprint sees it."""

    path: Path
    name: str
    kind: Kind
    size_bytes: int
    changed_nanoseconds: int


class NotText(Exception):
    """A file that is not UTF-8: passed over, and named in the manifest."""


def find_files(path: Path, pattern: str = "", exclude: tuple[str, ...] = ()) -> list[SourceFile]:
    """The files of a source, ordered by name.

    Args:
        path: A file, or a folder.
        pattern: Of a folder, the files that match; empty: those of a known kind.
        exclude: Of a folder, files to leave out; `**/test/**` is every folder of that name.

    Raises:
        InputError: There is nothing to read.
    """
    if not path.exists():
        raise InputError(f"data.path: {path} does not exist{_nearest(path)}")
    if path.is_file():
        return [_file(path, path.name)]
    if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
        return [
            _file(found, found.name, "dataset")
            for found in sorted(path.iterdir())
            if found.is_file()
        ]
    if (path / "dataset_dict.json").is_file():
        splits = sorted(found.name for found in path.iterdir() if found.is_dir())
        raise InputError(
            f"data.path: {path} holds several splits; name one of them:"
            f" {', '.join(str(path / split) for split in splits)}"
        )
    chosen = path.glob(pattern) if pattern else path.rglob("*")
    unwanted = [re.compile(_glob_as_regex(one)) for one in exclude]
    files = [
        _file(found, name)
        for found in chosen
        if found.is_file() and (pattern or found.suffix in SUFFIXES)
        for name in (found.relative_to(path).as_posix(),)
        if not any(one.fullmatch(name) for one in unwanted)
    ]
    if not files:
        wanted = f"matches {pattern!r}" if pattern else f"ends in {', '.join(SUFFIXES)}"
        wanted += f" and is not in {list(exclude)}" if exclude else ""
        others = "" if pattern else foreign(found for found in path.rglob("*") if found.is_file())
        raise InputError(
            f"data.path: no file under {path} {wanted}; {others or 'set data.pattern'}"
        )
    return sorted(files, key=lambda file: file.name)


def _glob_as_regex(pattern: str) -> str:
    """Translate a glob as `Path.glob` reads it: `**` is any number of folders, `*` stays in one."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append("(?:[^/]+/)*")
        else:
            inner = "".join({"*": "[^/]*", "?": "[^/]"}.get(c, re.escape(c)) for c in part)
            parts.append(inner + "/")
    whole = "".join(parts)
    # A pattern that ends in ** means every file below.
    return whole + "[^/]+" if pattern.endswith("**") else whole.removesuffix("/")


def _file(path: Path, name: str, kind: Kind | None = None) -> SourceFile:
    status = path.stat()
    return SourceFile(
        path=path,
        name=name,
        kind=kind or SUFFIXES.get(path.suffix, "text"),
        size_bytes=status.st_size,
        changed_nanoseconds=status.st_mtime_ns,
    )


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], 3)
    return f"; there is {', '.join(str(path.parent / name) for name in near)}" if near else ""


def cut(files: list[SourceFile]) -> list[tuple[Span, ...]]:
    """Pieces of about equal size, in order; each is read by one process."""
    if files[0].kind == "dataset":
        return _cut_dataset(files)
    total = sum(file.size_bytes for file in files)
    limit = min(max(total // _PIECES, _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)
    pieces: list[tuple[Span, ...]] = []
    gathered: list[Span] = []
    for file in files:
        for span in _spans(file, limit):
            if gathered and sum(s.weight_bytes for s in gathered) + span.weight_bytes > limit:
                pieces.append(tuple(gathered))
                gathered = []
            gathered.append(span)
    if gathered:
        pieces.append(tuple(gathered))
    return pieces


def _spans(file: SourceFile, limit: int) -> Iterator[Span]:
    size = file.size_bytes
    if file.kind == "parquet":
        groups = [(i, i + 1, g) for i, g in enumerate(_row_group_bytes(file.path))]
    else:
        cuts = [*range(0, size, limit), size] if size > _BLOCK_BYTES else [0, size]
        groups = [(a, b, b - a) for a, b in itertools.pairwise(cuts)]
    for start, stop, weight in groups:
        yield Span(
            path=str(file.path),
            name=file.name,
            kind=file.kind,
            start=start,
            stop=stop,
            weight_bytes=weight,
        )


def _row_group_bytes(path: Path) -> list[int]:
    parquet = _parquet(path)
    described = parquet.metadata
    return [described.row_group(i).total_byte_size for i in range(described.num_row_groups)]


def _cut_dataset(files: list[SourceFile]) -> list[tuple[Span, ...]]:
    folder = files[0].path.parent
    rows = len(_dataset(folder))
    size = sum(file.size_bytes for file in files)
    limit = min(max(size // _PIECES, _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)
    step = max(1, rows * limit // max(size, 1))
    return [
        (
            Span(
                path=str(folder),
                name=folder.name,
                kind="dataset",
                start=start,
                stop=min(start + step, rows),
                weight_bytes=size * (min(start + step, rows) - start) // rows,
            ),
        )
        for start in range(0, rows, step)
    ]


def read(span: Span, column: str) -> Iterator[DocumentPart]:
    """The documents of a span.

    Raises:
        InputError: It cannot be read; the message says where.
        NotText: A whole text file is not UTF-8.
    """
    if span.kind == "text":
        return _read_text(span)
    if span.kind == "jsonl":
        return _read_jsonl(span, column)
    if span.kind == "parquet":
        return _read_parquet(span, column)
    return _read_dataset(span, column)


def _read_text(span: Span) -> Iterator[DocumentPart]:
    path = Path(span.path)
    size = path.stat().st_size
    if size <= _BLOCK_BYTES:
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            raise NotText(span.name) from None
        yield DocumentPart(name=span.name, text=text)
        return
    with path.open("rb") as file:
        start, stop = _line_start(file, span.start, size), _line_start(file, span.stop, size)
        while start < stop:
            end = min(_line_start(file, min(start + _BLOCK_BYTES, size), size), stop)
            file.seek(start)
            try:
                text = file.read(end - start).decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}: byte {start + error.start} is not UTF-8; convert the file"
                ) from None
            yield DocumentPart(name=span.name, text=text, first=start == 0, last=end == size)
            start = end


def _line_start(file: Any, offset: int, size: int) -> int:
    """The start of the first line at or after `offset`; of a character, where lines are long."""
    if offset in (0, size):
        return offset
    file.seek(offset - 1)
    ahead = file.read(_LINE_BYTES)
    newline = ahead.find(b"\n")
    if newline >= 0:
        return offset + newline
    return offset + next(i for i, byte in enumerate(ahead[1:] + b" ") if byte & 0xC0 != 0x80)


def _read_jsonl(span: Span, column: str) -> Iterator[DocumentPart]:
    path = Path(span.path)
    decoder = msgspec.json.Decoder()
    with path.open("rb") as file:
        if span.start:
            file.seek(span.start - 1)
            file.readline()
        while (start := file.tell()) < span.stop:
            line = file.readline()
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{path}:{_line_number(path, start)}: {error}") from None
            if not isinstance(row, dict) or not isinstance(row.get(column), str):
                found = sorted(row) if isinstance(row, dict) else json.dumps(row)[:60]
                raise InputError(
                    f"{path}:{_line_number(path, start)}: no text under {column!r}, but {found};"
                    " set data.column"
                )
            yield DocumentPart(name="", text=row[column])


def _line_number(path: Path, offset: int) -> int:
    number = 1
    with path.open("rb") as file:
        while offset > 0:
            block = file.read(min(offset, 2**20))
            number += block.count(b"\n")
            offset -= len(block)
    return number


def _read_parquet(span: Span, column: str) -> Iterator[DocumentPart]:
    parquet = _parquet(Path(span.path))
    _check_column(span.path, column, parquet.schema_arrow.names)
    groups = range(span.start, span.stop)
    for rows in parquet.iter_batches(_ROWS, row_groups=groups, columns=[column]):
        yield from _texts(
            rows.column(0).to_pylist(), column, f"{span.path}: row group {span.start}"
        )


def _read_dataset(span: Span, column: str) -> Iterator[DocumentPart]:
    dataset = _dataset(Path(span.path))
    _check_column(span.path, column, dataset.column_names)
    for start in range(span.start, span.stop, _ROWS):
        rows = dataset[start : min(start + _ROWS, span.stop)][column]
        yield from _texts(rows, column, f"{span.path}: rows from {start}")


def _texts(rows: list[Any], column: str, where: str) -> Iterator[DocumentPart]:
    for row in rows:
        if not isinstance(row, str):
            kind = type(row).__name__
            raise InputError(f"{where}: column {column!r} holds {kind}, not text; set data.column")
        yield DocumentPart(name="", text=row)


def _check_column(path: str, column: str, columns: list[str]) -> None:
    if column not in columns:
        raise InputError(f"{path}: no column {column!r}, but {', '.join(columns)}; set data.column")


def _parquet(path: Path) -> Any:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "train") from None
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: {in_words(error)}") from None


def _dataset(folder: Path) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "train") from None
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: not a dataset that `datasets` can load: {in_words(error)}"
        ) from None
