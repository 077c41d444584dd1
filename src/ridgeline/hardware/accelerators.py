"""Which GPUs this machine has, asked of the vendors' tools and never of torch.

`nvidia-smi` and `rocm-smi` are run where they are installed. One that is there but fails is
reported as a note, for that is the state a broken driver leaves behind.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator

import msgspec

from ridgeline.hardware.catalogue import match_reported_name

TOOL_SECONDS = 20.0
"""A GPU in persistence mode answers in tens of milliseconds; one that must wake takes seconds."""

NVIDIA_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,driver_version,power.limit",
    "--format=csv,noheader,nounits",
)
ROCM_QUERY = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU, as its driver describes it."""

    index: int
    name: str
    """The name that the driver reports."""
    device: str | None
    """Its name in our catalogue; None when we have no facts about it."""
    memory_bytes: int | None
    driver: str | None
    power_limit_watts: float | None
    """The cap now in force, which may be below the part's design power."""


class ToolError(Exception):
    """A vendor's tool is installed and did not respond."""


Runner = Callable[[tuple[str, ...]], str | None]
"""The function that runs a command: its output, None when it is not installed, `ToolError` when it
fails."""


def run_tool(command: tuple[str, ...]) -> str | None:
    """Run a vendor's tool."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = said[0] if said else f"exit code {done.returncode}"
        raise ToolError(f"{command[0]}: {reason}")
    return done.stdout


def find_gpus(run: Runner = run_tool) -> tuple[list[Gpu], list[str]]:
    """The GPUs of this machine, and a note for each tool that failed."""
    gpus: list[Gpu] = []
    notes: list[str] = []
    for command, parse in ((NVIDIA_QUERY, parse_nvidia), (ROCM_QUERY, parse_rocm)):
        try:
            output = run(command)
            if output is not None:
                gpus += parse(output)
        except ToolError as error:
            notes.append(str(error))
    return gpus, notes


def parse_nvidia(output: str) -> list[Gpu]:
    """GPUs out of nvidia-smi's CSV: index, name, MiB, driver, watts."""
    gpus = []
    for index, name, mebibytes, driver, watts in nvidia_rows(output, 5):
        # Jetsons and shared-memory parts say [N/A] where a discrete card has a number.
        memory = _number(mebibytes)
        gpus.append(
            Gpu(
                index=int(index),
                name=name,
                device=_catalogue_name(name),
                memory_bytes=None if memory is None else int(memory) * 2**20,
                driver=driver,
                power_limit_watts=_number(watts),
            )
        )
    return gpus


def parse_rocm(output: str) -> list[Gpu]:
    """GPUs out of rocm-smi's JSON; the case of its keys differs between versions."""
    gpus = []
    for index, fields in rocm_cards(output):
        name = fields.get("card series") or fields.get("card model") or f"card{index}"
        memory = _number(fields.get("vram total memory (b)", ""))
        gpus.append(
            Gpu(
                index=index,
                name=name,
                device=_catalogue_name(name),
                memory_bytes=None if memory is None else int(memory),
                driver=None,
                power_limit_watts=None,
            )
        )
    return gpus


def nvidia_rows(output: str, num_fields: int) -> Iterator[list[str]]:
    """The fields of each GPU in nvidia-smi's CSV, its index first.

    Raises:
        ToolError: A line has another number of them, or no index.
    """
    for line in filter(str.strip, output.splitlines()):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != num_fields or not fields[0].isdigit():
            raise ToolError(f"nvidia-smi: cannot read {line.strip()!r}")
        yield fields


def rocm_cards(output: str) -> list[tuple[int, dict[str, str]]]:
    """The index of each card in rocm-smi's JSON, and its fields by their names in lower case.

    Raises:
        ToolError: It is no JSON of cards.
    """
    try:
        cards = msgspec.json.decode(output, type=dict[str, dict[str, str | int | float]])
    except msgspec.MsgspecError as error:
        raise ToolError(f"rocm-smi: {error}") from None
    found = [
        (int(number[1]), {key.casefold(): str(value) for key, value in given.items()})
        for card, given in cards.items()
        if (number := re.fullmatch(r"card(\d+)", card)) is not None
    ]
    return sorted(found, key=lambda card: card[0])


def _catalogue_name(name: str) -> str | None:
    known = match_reported_name(name)
    return None if known is None else known.name


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
