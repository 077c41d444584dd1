"""A list of edits as a unified diff of the user's own script.

    patch = write_patch([("fused-optimizer", edit), …], root=Path.cwd())
    patch.diff            # for `git apply` or `patch -p1` in `root`

An edit that has no safe place is left out with a reason; a file that would no longer compile is
never offered. Nothing is written here: the caller runs the result before a user sees it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from ridgeline.measure.child.sites import is_user_file
from ridgeline.records.edits import AtStart, Edit, FirstOf, ReplaceCall, SetArgument
from ridgeline.tune.patch_source import ScriptSource
from ridgeline.tune.patch_tree import CannotPlace

Named = tuple[str, Edit]
"""A technique and one of its edits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What became of a list of edits."""

    diff: str
    """Unified, with paths relative to the root under `a/` and `b/`; empty: nothing changes."""
    files: dict[Path, str]
    """Changed files and their new source."""
    placed: list[Named]
    unplaced: list[tuple[str, Edit, str]]
    """Technique, edit, and why it has no place."""


def write_patch(edits: Sequence[Named], root: Path, start: Path | None = None) -> Patch:
    """Place `edits` in the files below `root`.

    An edit after which a file does not compile counts as unplaced, and the others stand.
    """
    root = root.resolve()
    start = (start or root).resolve()
    attempt = _Attempt(edits, root, start)
    if not attempt.broken:
        return attempt.patch()
    good: list[Named] = []
    bad: list[tuple[str, Edit, str]] = []
    for named in edits:
        attempt = _Attempt([*good, named], root, start)
        if attempt.broken:
            bad.append((*named, attempt.broken))
        else:
            good.append(named)
    patch = _Attempt(good, root, start).patch()
    return Patch(
        diff=patch.diff,
        files=patch.files,
        placed=patch.placed,
        unplaced=[*patch.unplaced, *bad],
    )


class _Attempt:
    """All edits at once, on fresh sources."""

    def __init__(self, edits: Sequence[Named], root: Path, start: Path) -> None:
        self._root = root
        self._start = start
        self._sources: dict[Path, ScriptSource] = {}
        self._placed: list[Named] = []
        self._unplaced: list[tuple[str, Edit, str]] = []
        for name, edit in edits:
            try:
                self._place(edit)
            except CannotPlace as reason:
                self._unplaced.append((name, edit, str(reason)))
            else:
                self._placed.append((name, edit))
        self._changed = dict(self._rewritten())
        self.broken = self._first_error()
        """Why some file would not compile; empty: all would."""

    def patch(self) -> Patch:
        """The patch with all edits that found a place."""
        diffs = [
            _unified(self._sources[path].text, text, path.relative_to(self._root).as_posix())
            for path, text in self._changed.items()
        ]
        return Patch(
            diff="".join(diffs),
            files=self._changed,
            placed=self._placed,
            unplaced=self._unplaced,
        )

    def _place(self, edit: Edit) -> None:
        if isinstance(edit, FirstOf):
            self._place_first(edit.edits)
        elif isinstance(edit, AtStart):
            self._place_in_some(edit, edit.files, at_most=1)
        elif isinstance(edit, (SetArgument, ReplaceCall)) and edit.site is None:
            self._place_in_some(edit, edit.files)
        else:
            assert edit.site is not None
            self._source(edit.site.file).place(edit)

    def _place_first(self, alternatives: Sequence[Edit]) -> None:
        reasons = []
        for alternative in alternatives:
            try:
                self._place(alternative)
            except CannotPlace as reason:
                reasons.append(str(reason))
            else:
                return
        raise CannotPlace("; ".join(reasons) or "there is nothing to place")

    def _place_in_some(self, edit: Edit, files: Sequence[str], at_most: int | None = None) -> None:
        """Place an edit in the files that take it, in at least one."""
        placed = 0
        reasons = []
        for file in files:
            try:
                self._source(file).place(edit)
            except CannotPlace as reason:
                reasons.append(str(reason))
            else:
                placed += 1
            if placed == at_most:
                return
        if not placed:
            raise CannotPlace("; ".join(reasons) or "there is no file to change")

    def _source(self, file: str) -> ScriptSource:
        path = (self._start / file).resolve()
        if path not in self._sources:
            self._sources[path] = _read(path, file, self._root)
        return self._sources[path]

    def _rewritten(self) -> Iterator[tuple[Path, str]]:
        for path, source in self._sources.items():
            text = source.rewritten()
            if text != source.text:
                yield path, text

    def _first_error(self) -> str:
        for path, text in self._changed.items():
            try:
                compile(text, str(path), "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                return f"{self._sources[path].name} would not compile with it: {error}"
        return ""


def _read(path: Path, file: str, root: Path) -> ScriptSource:
    """Open a file that may be changed."""
    if not is_user_file(str(path)):
        raise CannotPlace(f"{file} belongs to a library")
    if not path.is_relative_to(root):
        raise CannotPlace(f"{file} lies outside of {root}")
    if not path.is_file():
        raise CannotPlace(f"{file} is not there")
    if not os.access(path, os.W_OK):
        raise CannotPlace(f"{file} may not be written")
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            text = stream.read()
        return ScriptSource(path.relative_to(root).as_posix(), text)
    except OSError as error:
        raise CannotPlace(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CannotPlace(f"{file} is not encoded in UTF-8") from None
    except cst.ParserSyntaxError as error:
        raise CannotPlace(f"{file} cannot be parsed: {error.message}") from None


def _unified(before: str, after: str, path: str) -> str:
    """A unified diff of one file, as git writes it."""
    lines = difflib.unified_diff(
        _lines(before), _lines(after), fromfile=f"a/{path}", tofile=f"b/{path}", lineterm="\n"
    )
    written = []
    for number, line in enumerate(lines):
        if number < 2 and " " in path:
            written.append(line.rstrip("\n") + "\t\n")  # else the name would end at its blank
        elif line.endswith("\n"):
            written.append(line)
        else:
            written.append(line + "\n\\ No newline at end of file\n")
    return "".join(written)


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a newline ends one, as for git and patch."""
    parts = text.split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    return lines + ([parts[-1]] if parts[-1] else [])
