"""Times that other tools wrote, as `compare` takes them: benchmarks, load tests, logs of steps.

A file of theirs states no kind of record, so each is known by its shape. Only single times are
taken: a file of means alone has no noise in it, and nothing can be judged by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, parse_json, read_bytes, read_text

TOOLS = "pytest-benchmark, hyperfine, vllm bench serve, aiperf and CSV (docs: compare)"
KEEPING_TIMES = {
    "pytest-benchmark": "run it with --benchmark-save-data",
    "hyperfine": "take what --export-json wrote",
    "serving benchmark": "run it with --save-detailed (SGLang: --output-details)",
    "aiperf": "take profile_export.jsonl",
}
"""Tool → what keeps its single times, where a file has none."""
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
}
"""A unit as a column's name ends in it, or as a file states it → seconds."""
_UNIT = "|".join(_SECONDS)
_REPEATED = "(?:step|iter|iteration|batch)"
_STEP = re.compile(
    rf"(?:\w+_)?(?:{_REPEATED}_(?:(?:time|duration|latency)(?:_({_UNIT}))?|({_UNIT}))"
    rf"|(?:time|({_UNIT}))_per_{_REPEATED}(?:_({_UNIT}))?)"
)
"""Names of columns that hold the time of a step; in seconds, unless the name says a unit."""


class _Times(msgspec.Struct, frozen=True):
    command: str
    times: list[float] = []


class _Hyperfine(msgspec.Struct, frozen=True):
    results: list[_Times]


class _Stats(msgspec.Struct, frozen=True):
    data: list[float] = []


class _Benchmark(msgspec.Struct, frozen=True):
    fullname: str
    stats: _Stats


class _PytestBenchmark(msgspec.Struct, frozen=True):
    benchmarks: list[_Benchmark]


class _ServedLoad(msgspec.Struct, frozen=True):
    ttfts: list[float]
    itls: list[list[float]]
    errors: list[str] = []
    model_id: str = ""
    backend: str = ""


class _Value(msgspec.Struct, frozen=True):
    value: float
    unit: str


class _RequestMetrics(msgspec.Struct, frozen=True):
    request_latency: _Value | None = None
    time_to_first_token: _Value | None = None


class _Request(msgspec.Struct, frozen=True):
    metrics: _RequestMetrics = _RequestMetrics()


Taken = dict[str, Any]
"""The fields of a `Run` that are not the usual ones, and `record`, whose tool it was."""


def _hyperfine(document: _Hyperfine) -> Taken:
    return _several("hyperfine", "run", [(one.command, one.times) for one in document.results])


def _pytest_benchmark(document: _PytestBenchmark) -> Taken:
    times = [(one.fullname, one.stats.data) for one in document.benchmarks]
    return _several("pytest-benchmark", "round", times)


def _several(record: str, unit: str, timed: Iterable[tuple[str, list[float]]]) -> Taken:
    """Parts by name; what was timed twice under one name is one part."""
    parts: dict[str, list[float]] = {}
    for name, times in timed:
        parts.setdefault(name, []).extend(times)
    first = next((times for times in parts.values() if times), [])
    return {"record": record, "kind": record, "unit": unit, "samples": first, "parts": parts}


def _served_load(document: _ServedLoad) -> Taken:
    """Requests that were answered: first token and the gaps between those after it."""
    count = len(document.ttfts)
    errors = document.errors or [""] * count
    if not count == len(document.itls) == len(errors):
        raise ValueError("ttfts, itls and errors are not of as many requests")
    rows = zip(document.ttfts, document.itls, errors, strict=True)
    answered = [
        (first, first + sum(gaps)) for first, gaps, error in rows if not error and first > 0
    ]
    taken = _requests("serving benchmark", answered)
    taken["command"] = [document.model_id or document.backend]
    return taken


def _requests(record: str, answered: Sequence[tuple[float | None, float]]) -> Taken:
    """Requests by the seconds to their first token, where they are known, and in all."""
    wholes = [whole for _, whole in answered]
    firsts = [first for first, _ in answered if first is not None]
    phases = {}
    if answered and len(firsts) == len(answered):
        first = sum(firsts) / len(firsts)
        phases = {"first token": first, "other tokens": sum(wholes) / len(wholes) - first}
    return {
        "record": record,
        "kind": "requests",
        "unit": "request",
        "samples": wholes,
        "phases": phases,
    }


_SHAPES: Mapping[frozenset[str], tuple[Any, Callable[[Any], Taken]]] = {
    frozenset({"benchmarks", "machine_info"}): (_PytestBenchmark, _pytest_benchmark),
    frozenset({"results"}): (_Hyperfine, _hyperfine),
    frozenset({"ttfts", "itls"}): (_ServedLoad, _served_load),
    frozenset({"request_throughput", "completed"}): (
        dict,
        lambda _: _requests("serving benchmark", []),
    ),
}
"""Keys by which a document is known → how it is read."""


def taken_from_document(content: Mapping[str, Any], path: Path) -> Taken | None:
    """Times of a JSON document of another tool; None where it is of no known shape.

    Raises:
        InputError: It is of a known shape and broken.
    """
    for keys, (kind, take) in _SHAPES.items():
        if keys <= content.keys():
            try:
                return take(msgspec.convert(content, type=kind))
            except (msgspec.ValidationError, ValueError) as error:
                raise InputError(
                    f"{path}: {error}; compare reads single times of {TOOLS}"
                ) from None
    return None


def taken_from_lines(path: Path) -> Taken | None:
    """Times of a table of steps or requests, by its suffix; None where it is no table.

    Raises:
        InputError: No column of it holds times, or several might.
    """
    if path.suffix == ".csv":
        rows = csv_rows(read_text(path), where=str(path))
        _, names = next(rows, (0, []))
        cells = [(line, dict(zip(names, row, strict=False))) for line, row in rows]
        return _steps(path, names, cells)
    if path.suffix not in (".jsonl", ".ndjson"):
        return None
    lines = [
        (number, parse_json(line, dict[str, Any], where=f"{path}:{number}"))
        for number, line in enumerate(read_bytes(path).splitlines(), 1)
        if line.strip()
    ]
    if lines and "metrics" in lines[0][1]:
        return _aiperf(path, [content for _, content in lines])
    if len(lines) == 1:  # a load test's only line
        return taken_from_document(lines[0][1], path)
    names = list(dict.fromkeys(name for _, content in lines for name in content))
    return _steps(path, names, lines)


def _aiperf(path: Path, lines: Iterable[dict[str, Any]]) -> Taken:
    """Requests that were answered; a first token is known of those that were streamed."""
    try:
        found = [msgspec.convert(line, type=_Request).metrics for line in lines]
        answered = [
            (_first_token(one), _seconds(one.request_latency))
            for one in found
            if one.request_latency is not None
        ]
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"{path}: {error}; compare reads single times of {TOOLS}") from None
    return _requests("aiperf", answered)


def _first_token(metrics: _RequestMetrics) -> float | None:
    first = metrics.time_to_first_token
    return None if first is None else _seconds(first)


def _seconds(value: _Value) -> float:
    if value.unit not in _SECONDS:
        raise ValueError(f"{value.value:g} {value.unit} is no time")
    return value.value * _SECONDS[value.unit]


def _steps(
    path: Path, names: Sequence[str], rows: Sequence[tuple[int, Mapping[str, Any]]]
) -> Taken:
    """The steps of a log, by the only column that is called a step's time."""
    plain = {name: re.sub(r"\W+", "_", name.strip().lower()) for name in names}
    matched = ((name, _STEP.fullmatch(plain[name])) for name in names)
    timed = {name: found.groups() for name, found in matched if found is not None}
    if len(timed) != 1:
        what = f"several columns of times ({', '.join(timed)})" if timed else "no column of times"
        raise InputError(
            f"{path}: {what} among {', '.join(names) or 'none'}; keep one, called step_time or "
            "step_time_ms"
        )
    ((column, units),) = timed.items()
    seconds = next((_SECONDS[unit] for unit in units if unit), 1.0)
    samples = []
    for line, row in rows:
        cell = row.get(column)
        if cell is None or cell == "":
            continue  # a line of something else: a validation, an epoch's end
        try:
            samples.append(float(cell) * seconds)
        except (TypeError, ValueError):
            raise InputError(f"{path}:{line}: {column} is {cell!r}, not a time") from None
    return {"record": "log of steps", "kind": "training", "unit": "step", "samples": samples}
