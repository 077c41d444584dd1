"""What is remembered of earlier sessions: one file in the user's state folder.

It is written whole or not at all, after every answer, under a lock that a second session waits
for. A file that cannot be read is put aside under another name, never written over.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from ridgeline.drills.bank import topics
from ridgeline.errors import InputError, in_words
from ridgeline.records.drill import (
    DrillAttempt,
    DrillGrade,
    DrillProgress,
    DrillStanding,
    SessionScore,
    TopicScore,
)
from ridgeline.records.state_folder import VARIABLE, state_folder
from ridgeline.records.store import read_record, write_record

FILE = "progress.json"


class DrillHistory:
    """The answered questions of one user; what it had to put aside stands in `notes`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder("drill")
        self.notes: list[str] = []
        self._session = _now()

    def read(self) -> DrillProgress:
        """Everything that is remembered; nothing where there is no file yet."""
        if not self._path.exists():
            return DrillProgress()
        try:
            return read_record(self._path, DrillProgress, ours=True)
        except InputError as error:
            aside = self._put_aside()
            self.notes.append(f"{in_words(error)}; kept as {aside.name}, and begun anew")
            return DrillProgress()

    def add(self, graded: DrillGrade) -> None:
        """Remember one graded answer, after all others.

        Raises:
            InputError: The folder cannot be written.
        """
        attempt = DrillAttempt(
            when=_now(),
            session=self._session,
            id=graded.id,
            topic=graded.topic,
            score=graded.score,
            seconds=graded.seconds or 0.0,
        )
        try:
            with self._locked():
                known = self.read()
                write_record(self._path, DrillProgress(attempts=[*known.attempts, attempt]))
        except OSError as error:
            raise InputError(
                f"{self._path}: {in_words(error)}; set {VARIABLE} to a folder that can be written"
            ) from None

    @property
    def _path(self) -> Path:
        return self.folder / FILE

    def _put_aside(self) -> Path:
        number = 1
        while (aside := self.folder / f"{FILE}.damaged-{number}").exists():
            number += 1
        self._path.rename(aside)
        return aside

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f".{FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def standing_of(progress: DrillProgress) -> DrillStanding:
    """Topics with what was answered of each, and the score of every session."""
    return DrillStanding(
        topics=[
            TopicScore(
                topic=topic,
                questions=names,
                answered=len(own),
                score=_mean([one.score for one in own]),
            )
            for topic, names in topics().items()
            for own in [[one for one in progress.attempts if one.topic == topic]]
        ],
        sessions=[
            SessionScore(
                began=began,
                answered=len(own),
                score=_mean([one.score for one in own]) or 0.0,
                seconds=_mean([one.seconds for one in own]) or 0.0,
            )
            for began in dict.fromkeys(one.session for one in progress.attempts)
            for own in [[one for one in progress.attempts if one.session == began]]
        ],
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
