"""The rocpd database of rocprofv3 and rocprof-sys: SQLite, schema version 3.

Every table carries the session's identifier in its name, and a view without it (`rocpd_region`)
joins the sessions. Names are rows of `rocpd_string`, kernels of `rocpd_info_kernel_symbol`, GPUs of
`rocpd_info_agent`. A kernel's `rocpd_event` has the `stack_id` of the call that launched it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.trace.columns import TraceDevice
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.formats.rocprof.hsa import block_counts, copy_name
from ridgeline.trace.sqlite_file import opened, tables_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_NEEDED = ("rocpd_kernel_dispatch", "rocpd_string", "rocpd_event", "rocpd_info_agent")
_MARKER = "MARKER"
_JOIN = (
    'LEFT JOIN rocpd_event AS e ON e."id" = r."event_id" AND e."guid" = r."guid" '
    'LEFT JOIN rocpd_info_process AS p ON p."id" = r."pid" AND p."guid" = r."guid" '
    'LEFT JOIN rocpd_info_thread AS t ON t."id" = r."tid" AND t."guid" = r."guid" '
)
# Nothing in the queries below comes from outside.
_SHARED = (
    'r."start", r."end", ifnull(nullif(e."stack_id", 0), ifnull(e."correlation_id", -1)), '
    'ifnull(p."pid", 0), ifnull(t."tid", 0)'
)
_KERNELS = (
    f'SELECT {_SHARED}, r."agent_id", r."stream_id", r."grid_size_x", r."grid_size_y", '  # noqa: S608
    'r."grid_size_z", r."workgroup_size_x", r."workgroup_size_y", r."workgroup_size_z", '
    'ifnull(r."group_segment_size", -1), ifnull(k."display_name", k."kernel_name"), '
    'ifnull(k."arch_vgpr_count", -1) '
    f"FROM rocpd_kernel_dispatch AS r {_JOIN}"
    'LEFT JOIN rocpd_info_kernel_symbol AS k ON k."id" = r."kernel_id" AND k."guid" = r."guid"'
)
_COPIES = (
    f'SELECT {_SHARED}, r."dst_agent_id", r."src_agent_id", '  # noqa: S608
    'ifnull(r."stream_id", -1), r."size", '
    f's."string" FROM rocpd_memory_copy AS r {_JOIN}'
    'LEFT JOIN rocpd_string AS s ON s."id" = r."name_id" AND s."guid" = r."guid"'
)
_REGIONS = (
    f'SELECT {_SHARED}, s."string", c."string", e."extdata" FROM rocpd_region AS r {_JOIN}'  # noqa: S608
    'LEFT JOIN rocpd_string AS s ON s."id" = r."name_id" AND s."guid" = r."guid" '
    'LEFT JOIN rocpd_string AS c ON c."id" = e."category_id" AND c."guid" = e."guid"'
)
_AGENTS = (
    'SELECT "id", "type", "type_index", "product_name", "name", "extdata" FROM rocpd_info_agent'
)


def read_database(path: Path) -> FileRows:
    """Everything that a rocpd database holds.

    Raises:
        InputError: it is damaged, or of a schema that is not known.
    """
    with opened(path, "a whole rocpd database of schema 3") as connection:
        known = tables_of(connection)
        missing = [name for name in _NEEDED if name not in known]
        if missing:
            raise InputError(
                f"{path}: a rocpd database without {missing[0]}; write it again with rocprofv3 "
                "--output-format rocpd of ROCm 7, or as json"
            )
        return _filled(connection, known)


def _filled(connection: sqlite3.Connection, known: set[str]) -> FileRows:
    found = FileRows()
    agents = _add_devices(found, connection)
    for start, end, link, pid, _, agent, stream, *sizes, shared, name, registers in _rows(
        connection, _KERNELS
    ):
        blocks, threads = block_counts(tuple(sizes[:3]), tuple(sizes[3:]))
        found.add_kernel(
            name=str(name), start=start, end=end, device=agents.get(agent, 0), stream=stream,
            correlation=link, process=pid, blocks=blocks, threads=threads,
            shared=shared, registers=registers,
        )  # fmt: skip
    if "rocpd_memory_copy" in known:
        for start, end, link, pid, _, target, source, stream, size, name in _rows(
            connection, _COPIES
        ):
            found.add_copy(
                name=copy_name(str(name)), start=start, end=end, stream=stream, correlation=link,
                process=pid, size=size,
                device=next((agents[one] for one in (target, source) if one in agents), 0),
            )  # fmt: skip
    if "rocpd_region" in known:
        for start, end, link, pid, thread, name, category, data in _rows(connection, _REGIONS):
            if _MARKER in str(category):
                found.add_range(
                    written=_message(data) or str(name),
                    start=start, end=end, process=pid, thread=thread,
                )  # fmt: skip
            else:
                found.add_call(
                    name=str(name), start=start, end=end, process=pid, thread=thread,
                    correlation=link,
                )  # fmt: skip
    return found


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    return iter(connection.execute(query))


def _add_devices(found: FileRows, connection: sqlite3.Connection) -> dict[int, int]:
    """Agent → number of its GPU; CPUs are not in it."""
    numbers: dict[int, int] = {}
    for agent, kind, index, product, name, data in connection.execute(_AGENTS):
        if kind != "GPU":
            continue
        number = len(numbers) if index is None else int(index)
        numbers[int(agent)] = number
        units = _value(data, "cu_count")
        found.devices[number] = TraceDevice(
            index=number,
            name=str(product or name or ""),
            num_sms=units if isinstance(units, int) else None,
        )
    return numbers


def _message(data: Any) -> str | None:
    """What a roctx range was given as its text."""
    found = _value(data, "message")
    return found if isinstance(found, str) and found else None


def _value(data: Any, key: str) -> Any:
    try:
        decoded = msgspec.json.decode(data) if isinstance(data, str | bytes) else None
    except msgspec.DecodeError:
        return None
    return decoded.get(key) if isinstance(decoded, dict) else None
