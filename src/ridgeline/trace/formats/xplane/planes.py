"""The messages of an XSpace: planes, their lines, events and statistics, names resolved.

Field numbers: github.com/openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto.

    XSpace   1 planes
    XPlane   2 name, 3 lines, 4 event metadata, 5 statistic metadata (maps), 6 statistics
    XLine    1 id, 2 name, 3 timestamp_ns, 4 events, 11 display name
    XEvent   1 metadata, 2 offset_ps, 3 duration_ps, 4 statistics
    XStat    1 metadata, 2 double, 3 uint64, 4 int64, 5 text, 6 bytes, 7 reference to a name

Protocol buffers are read as far as an XSpace needs them: a message is a row of fields: a key
(number and wire type, as a varint), then a varint, 4 or 8 bytes, or a length and so many bytes
(protobuf.dev/programming-guides/encoding). Nothing is copied: nested messages are views of the
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Stats = dict[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneEvent:
    """An event of a line, in nanoseconds."""

    name: str
    start: int
    end: int
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class XLine:
    """A stream, a host thread, or a row that a viewer shows."""

    id: int
    name: str
    events: list[memoryview]
    start_ns: int


@dataclass(slots=True)
class XPlane:
    """A device or the host."""

    name: str = ""
    lines: list[XLine] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    stats: list[memoryview] = field(default_factory=list)

    @property
    def facts(self) -> Stats:
        """The statistics of the plane itself."""
        return dict(self._stat(one) for one in self.stats)

    def events(self, line: XLine) -> Iterator[PlaneEvent]:
        """The events of one of its lines."""
        for message in line.events:
            kind = offset = length = 0
            stats: Stats = {}
            for key, value in fields(message):
                if key == 1:
                    kind = number(value)
                elif key == 2:
                    offset = number(value)
                elif key == 3:
                    length = number(value)
                elif key == 4 and isinstance(value, memoryview):
                    name, found = self._stat(value)
                    stats[name] = found
            start = line.start_ns * 1000 + offset
            yield PlaneEvent(
                name=self.names.get(kind, f"event {kind}"),
                start=start // 1000,
                end=(start + max(length, 0)) // 1000,
                stats=stats,
            )

    def _stat(self, message: memoryview) -> tuple[str, int | str]:
        name = ""
        said: int | str = 0
        for key, value in fields(message):
            if key == 1:
                name = self.stat_names.get(number(value), "")
            elif key in (3, 4):
                said = number(value)
            elif key == 5:
                said = text(value)
            elif key == 7:
                said = self.stat_names.get(number(value), "")
        return name, said


def planes(space: memoryview) -> Iterator[XPlane]:
    """The planes of an XSpace.

    Raises:
        ValueError: no XSpace, or one that is cut.
    """
    for key, message in fields(space):
        if key == 1 and isinstance(message, memoryview):
            yield _plane(message)


def _plane(message: memoryview) -> XPlane:
    plane = XPlane()
    for key, value in fields(message):
        if not isinstance(value, memoryview):
            continue
        if key == 2:
            plane.name = text(value)
        elif key == 3:
            plane.lines.append(_line(value))
        elif key in (4, 5):
            known = plane.names if key == 4 else plane.stat_names
            entry, name = _named(value)
            known[entry] = name
        elif key == 6:
            plane.stats.append(value)
    return plane


def _line(message: memoryview) -> XLine:
    found: dict[int, int | memoryview] = {}
    events: list[memoryview] = []
    for key, value in fields(message):
        if key == 4 and isinstance(value, memoryview):
            events.append(value)
        else:
            found[key] = value
    return XLine(
        id=number(found.get(1)),
        name=text(found.get(11)) or text(found.get(2)),
        events=events,
        start_ns=number(found.get(3)),
    )


def _named(entry: memoryview) -> tuple[int, str]:
    """Key and name of an entry of a metadata map."""
    pair = dict(fields(entry))
    inside = pair.get(2)
    facts = dict(fields(inside)) if isinstance(inside, memoryview) else {}
    return number(pair.get(1)), text(facts.get(2))


_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: a varint as a number, everything else as its bytes.

    Raises:
        ValueError: no message, or one that is cut.

    >>> [(number, value) for number, value in fields(memoryview(bytes([8, 150, 1])))]
    [(1, 150)]
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(message, place, end)
            yield number, value
            continue
        size = {_EIGHT: 8, _FOUR: 4}.get(kind)
        if kind == _LENGTH:
            size, place = _varint(message, place, end)
        if size is None or number == 0 or place + size > end:
            raise ValueError(f"no field of a message at byte {place}")
        yield number, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while place < end and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(f"a number that does not end at byte {place}")


def text(value: int | memoryview | None) -> str:
    """A string field; empty where it is missing or no text."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


def number(value: int | memoryview | None) -> int:
    """An integer field, 0 where it is missing; negative ones are 64 bits on the wire."""
    if not isinstance(value, int):
        return 0
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
