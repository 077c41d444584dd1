"""Batches of events into columns: what is known by its category, what is counted, what is damaged.

A batch that is well formed is decoded at once. One with metadata or strange events in it is looked
over by its heads (phase, category, name), and what has a known category is decoded as a batch of
its own, so that metadata costs little. Only what is damaged is read event by event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from ridgeline.trace.formats.kineto.columns import Columns
from ridgeline.trace.formats.kineto.events import (
    KNOWN,
    LARGEST_STAMP_US,
    ON_THE_HOST,
    Decoders,
    Head,
    ProcessName,
    Role,
    ThreadName,
    decoders,
    host_category,
    read_heads,
    read_metadata,
    role_of,
    split_raw,
)

NO_CATEGORY = "(none)"
"""How events without a category are counted."""
_MOST_LEARNED = 64
_SPANS_OF_OTHERS = frozenset({"B", "b"})
"""Categories that are learned; beyond, they are counted one by one."""
_MOST_NAMES = 1000
_LONGEST_PROCESS = 40
_NAMES = ("thread_name", "process_name")
"""The metadata that is read."""
_MEMORY, _CATEGORY_OF_MEMORY = "[memory]", "cpu_instant_event"
"""Events to which torch 1.8 gives no category, and the one that they have later."""


@dataclass(slots=True)
class Intake:
    """What becomes of the events of one file."""

    columns: Columns
    tags: tuple[str, ...] = KNOWN
    stamp: type = float
    num_events: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    """Events of categories that nobody has told us about."""
    spans_of_others: Counter[str] = field(default_factory=Counter)
    """Beginnings of spans that torch.profiler does not write like this, by category."""
    damaged: int = 0
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    process_names: set[str] = field(default_factory=set)

    def take(self, array: bytes | memoryview) -> None:
        """Take a whole JSON array of events.

        Raises:
            msgspec.DecodeError: it is no JSON; nothing of it was taken.
        """
        try:
            self._sort(self._decoders().batch(array))
        except msgspec.ValidationError:
            self._take_mixed(array)

    def _decoders(self) -> Decoders:
        return decoders(self.tags, self.stamp, details=self.columns.details)

    def _take_mixed(self, array: bytes | memoryview) -> None:
        """Decode a batch in which some events are metadata, or of a kind that we do not know."""
        with suppress(msgspec.ValidationError):
            self._note_names(read_metadata(array))
            return
        try:
            heads = read_heads(array)
        except msgspec.ValidationError:
            self.take_each(split_raw(array))
            return
        tags = set(self.tags)
        wanted = []
        for number, head in enumerate(heads):
            if head.ph == "M" and head.name not in _NAMES:
                self.num_events += 1  # most of the metadata that there can be a great deal of
            elif not self._passes(head, tags):
                wanted.append(number)
        if not wanted:
            return
        texts = split_raw(array)
        chosen = [_with_category(heads[number], texts[number]) for number in wanted]
        try:
            self._sort(self._decoders().batch(b"[" + b",".join(chosen) + b"]"))
        except msgspec.ValidationError:
            self.take_each(chosen)

    def take_each(self, events: Sequence[msgspec.Raw | bytes]) -> None:
        """Decode events one at a time, for what a batch decoder refuses as a whole."""
        taken = []
        for event in events:
            try:
                taken.append(self._decoders().one(event))
            except msgspec.ValidationError:
                self._take_odd(event)
        self._sort(taken)

    def _take_odd(self, raw: msgspec.Raw | bytes) -> None:
        """An event without a category, or of a kind or form that nobody has told us about."""
        try:
            event: Any = msgspec.json.decode(raw)
        except msgspec.ValidationError:  # a number that no float holds
            event = None
        if not isinstance(event, dict):
            self.num_events += 1
            self.damaged += 1
            return
        if event.get("cat") is None and event.get("name") == _MEMORY:
            event["cat"] = _CATEGORY_OF_MEMORY
            self.take_each([msgspec.Raw(msgspec.json.encode(event))])
            return
        tags = set(self.tags)
        known = len(tags)
        if self._passes(Head.of(event), tags):
            return
        if len(tags) > known:
            self.take_each([raw])
        else:
            self.num_events += 1
            self.damaged += 1

    def _passes(self, head: Head, tags: set[str]) -> bool:
        """Deal with an event that needs no struct of its own; False for one that does.

        A category that is met for the first time is learned: it is added to `tags` too.
        """
        phase, category = head.ph, head.cat
        if phase == "M":
            self._note_name(head)
        elif category in tags if category.__class__ is str else head.name == _MEMORY:
            return False
        elif phase.__class__ is not str:
            self.damaged += 1
        elif phase == "X":
            if category.__class__ is not str:
                # torch.autograd.profiler names sorts of work as processes.
                named = isinstance(head.pid, str) and len(head.pid) < _LONGEST_PROCESS
                self.unread[head.pid if named else NO_CATEGORY] += 1
            elif role_of(category) is None and len(tags) >= len(KNOWN) + _MOST_LEARNED:
                self.unread[category] += 1
            else:
                tags.add(category)
                self.tags = (*self.tags, category)
                return False
        elif phase in _SPANS_OF_OTHERS:
            self.spans_of_others[category if category.__class__ is str else NO_CATEGORY] += 1
        self.num_events += 1  # counters, flows, instants of other programs are counted, no more
        return True

    def _note_names(self, metadata: Sequence[Any]) -> None:
        self.num_events += len(metadata)
        self.thread_names.update(
            {
                (one.pid, one.tid): str(one.args.name)
                for one in metadata
                if one.__class__ is ThreadName and one.args is not None
            }
        )
        if len(self.process_names) < _MOST_NAMES:
            self.process_names.update(
                {
                    str(one.args.name)[:200]
                    for one in metadata
                    if one.__class__ is ProcessName and one.args is not None
                }
            )

    def _note_name(self, head: Head) -> None:
        if head.args is None:
            return
        if head.name == "thread_name":
            process, thread = head.pid, head.tid
            if isinstance(process, int | str) and isinstance(thread, int | str):
                self.thread_names[process, thread] = str(head.args.name)
        elif head.name == "process_name" and len(self.process_names) < _MOST_NAMES:
            self.process_names.add(str(head.args.name)[:200])

    def _sort(self, events: list[Any]) -> None:
        self.num_events += len(events)
        if self.stamp is Decimal:
            events = self._with_sound_stamps(events)
        groups: dict[type, list[Any]] = {}
        for event in events:
            kind = event.__class__
            try:
                groups[kind].append(event)
            except KeyError:
                groups[kind] = [event]
        of_host, of_gpu = [], []
        for kind, members in groups.items():
            role, category = kind.SORT  # type: ignore[attr-defined]
            if role in ON_THE_HOST:
                of_host.append((role, host_category(category), members))
            elif role is Role.GPU:
                of_gpu.append((category, members))
            elif role is not Role.SKIP:
                self.columns.add(role, members)
            elif role_of(category) is None:
                self.unread[category] += len(members)
        if of_gpu:
            self.columns.add_gpu(of_gpu)
        if of_host:
            self.columns.add_host(of_host)

    def _with_sound_stamps(self, events: list[Any]) -> list[Any]:
        """The events whose decimal stamp is a number: as a text, NaN passes for one."""
        sound = [
            event
            for event in events
            if event.__class__.SORT[0] is Role.SKIP
            or (event.ts.is_finite() and abs(event.ts) <= LARGEST_STAMP_US)
        ]
        self.damaged += len(events) - len(sound)
        return sound


def _with_category(head: Head, text: msgspec.Raw) -> msgspec.Raw | bytes:
    """The event as later versions write it, so that a batch of them is decoded at once."""
    if head.name != _MEMORY or head.cat is not None:
        return text
    written = bytes(text)
    if b'"cat"' in written:
        return text
    return b'{"cat": "' + _CATEGORY_OF_MEMORY.encode() + b'", ' + written.lstrip()[1:]
