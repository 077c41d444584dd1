"""Request traces to replay: Azure's CSV and Mooncake's JSON lines. Neither holds any text.

Azure (Patel et al., Splitwise, ISCA 2024): TIMESTAMP, ContextTokens, GeneratedTokens.
Mooncake (Qin et al., FAST 2025): timestamp in milliseconds, input_length, output_length, hash_ids:
one id per block of 512 prompt tokens; equal ids at equal places mean equal text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, parse_json, read_text

MOONCAKE_BLOCK_TOKENS = 512
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_CURE = f"give Azure's CSV ({', '.join(_AZURE)}) or Mooncake's JSON lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One request of a trace."""

    at_seconds: float
    """From the trace's first request."""
    input_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    """One per block of the prompt; empty: the prompt shares nothing."""


class _MooncakeRow(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> list[Traced]:
    """All requests by time.

    Raises:
        InputError: not readable, or a row that is neither format; names the line.
    """
    text = read_text(path, option="--trace", cure=_CURE)
    rows = _mooncake(path, text) if text.lstrip().startswith("{") else _azure(path, text)
    if not rows:
        raise InputError(f"--trace {path}: holds no request; {_CURE}")
    for number, row in enumerate(rows, start=1):
        if not math.isfinite(row.at_seconds) or min(row.input_tokens, row.output_tokens) < 0:
            raise InputError(f"--trace {path}, request {number}: no time, or lengths below 0")
    rows.sort(key=lambda row: row.at_seconds)
    first = rows[0].at_seconds
    return [
        Traced(
            at_seconds=row.at_seconds - first,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            prefix_ids=row.prefix_ids,
        )
        for row in rows
    ]


def _azure(path: Path, text: str) -> list[Traced]:
    lines = csv_rows(text, where=f"--trace {path}", cure=_CURE)
    header = next(lines, (1, []))[1]
    missing = [name for name in _AZURE if name not in header]
    if missing:
        raise InputError(f"--trace {path}: no column {missing[0]}; {_CURE}")
    rows = []
    for number, cells in lines:
        try:
            line = dict(zip(header, cells, strict=True))
            rows.append(
                Traced(
                    at_seconds=_seconds(line["TIMESTAMP"]),
                    input_tokens=int(line["ContextTokens"]),
                    output_tokens=int(line["GeneratedTokens"]),
                )
            )
        except (ValueError, OverflowError):
            raise InputError(
                f"--trace {path}, line {number}: {', '.join(_AZURE)} have to be a time and two"
                " whole numbers"
            ) from None
    return rows


def _seconds(stamp: str) -> float:
    """Azure writes seven decimals; `fromisoformat` of Python 3.11 takes them, and cuts the last."""
    whole, _, fraction = stamp.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _mooncake(path: Path, text: str) -> list[Traced]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"--trace {path}, line {number}"
        row = parse_json(line.encode(), _MooncakeRow, where=where)
        rows.append(
            Traced(
                at_seconds=row.timestamp / 1e3,
                input_tokens=row.input_length,
                output_tokens=row.output_length,
                prefix_ids=row.hash_ids,
            )
        )
    return rows


def fitted(
    rows: list[Traced], *, speed: float, length_scale: float, most: int | None
) -> list[Traced]:
    """The trace `speed` times as fast, lengths scaled, at most `most` requests.

    A length stays at least 1. Prefix ids keep their places: their blocks are scaled as well, which
    is `block_tokens`.
    """
    return [
        Traced(
            at_seconds=row.at_seconds / speed,
            input_tokens=max(1, math.ceil(row.input_tokens * length_scale)),
            output_tokens=max(1, round(row.output_tokens * length_scale)),
            prefix_ids=row.prefix_ids,
        )
        for row in rows[:most]
    ]


def block_tokens(length_scale: float) -> int:
    """Prompt tokens of one prefix id after scaling."""
    return max(1, round(MOONCAKE_BLOCK_TOKENS * length_scale))
