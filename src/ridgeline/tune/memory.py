"""What was proved already, on disk: an interrupted job picks up where it stopped.

The search asks the same questions in the same order every time, so remembering the answers is
all that resuming needs. Each answer is on disk before the next question is asked. A file from
another command, another version of the script or another torch is not used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.measure.live.command import script_path
from ridgeline.measure.wire import CallsAsSteps, Updates
from ridgeline.records import LedgerRow, Site, StepProfile
from ridgeline.records.store import read_record, write_record


class Answers(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything measured so far."""

    fingerprint: str
    baseline: StepProfile | None = None
    calls: CallsAsSteps = CallsAsSteps()
    """How calls of the model counted in it."""
    profiles: dict[str, StepProfile] = {}
    """Profiles of the script with a stack, by the stack in words."""
    seeds: list[list[float]] | None = None
    seed_updates: list[Updates] = []
    """What the optimizers stepped by under those seeds."""
    repeat: list[float] | None = None
    shaken: dict[str, list[float]] = {}
    """Equivalence → losses of the script disturbed by as much."""
    shaken_updates: dict[str, Updates] = {}
    """What its optimizers stepped by."""
    rows: dict[str, LedgerRow] = {}
    samples: dict[str, dict[str, list[float]]] = {}
    updates: dict[str, Updates] = {}
    """Question → what the optimizers of its changed side stepped by."""
    places: dict[str, list[Site]] = {}
    """Technique → the lines of the script that it took effect at."""

    def know_places(self, found: dict[str, list[Site]]) -> None:
        """Add the lines of another run: one may have come to fewer of them than the last."""
        for name, sites in found.items():
            known = self.places.setdefault(name, [])
            known += [site for site in sites if site not in known]


class JobMemory:
    """Answers by question, saved at once."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self.answers = Answers(fingerprint=fingerprint)
        self.resumed = False
        self.lost: str | None = None
        """Why what an earlier job had measured could not be read."""
        if not path.exists():
            return
        try:
            found = read_record(path, Answers, ours=True)
        except InputError as error:
            # Half-known answers are worth nothing; measuring again is always right.
            self.lost = str(error)
            path.unlink()
            return
        if found.fingerprint == fingerprint:
            self.answers = found
            self.resumed = found.baseline is not None

    def save(self) -> None:
        """Put the answers on disk, whole or not at all."""
        write_record(self._path, self.answers)

    def forget(self) -> None:
        """The job is done: the next one measures anew."""
        self._path.unlink(missing_ok=True)


def fingerprint(command: list[str], torch_version: str, extra: str = "") -> str:
    """Identity of a job: the command, the script's text, the torch it runs with."""
    digest = hashlib.sha256("\0".join([*command, torch_version, extra]).encode())
    script = script_path(command)
    if script is not None and script.is_file():
        digest.update(script.read_bytes())
    return digest.hexdigest()
