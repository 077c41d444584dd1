"""The stack as a diff of the user's script: written, run, verified and measured, then offered.

The patched files run in a shadow of the folder: the patched files are real, everything else is
a link, so that the script finds its neighbours and its data and the user's files stay as they
are.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from msgspec.structs import replace

from ridgeline.measure.child.sites import project_root
from ridgeline.measure.live.command import script_path
from ridgeline.measure.wire import Applied
from ridgeline.records import Ledger
from ridgeline.records.edits import Edit
from ridgeline.records.measurement import script_of
from ridgeline.records.store import write_atomically
from ridgeline.techniques import Context, technique
from ridgeline.tune.candidates import label_of
from ridgeline.tune.patch import Patch, write_patch
from ridgeline.tune.pool import Variant
from ridgeline.tune.search import StackSearch

PATCH_NAME = "tuned.patch"
_REASONS = 3
"""Distinct reasons that are told; a fourth says no more."""


def prove_patch(search: StackSearch, ledger: Ledger, context: Context, out: Path) -> Ledger:
    """Write `tuned.patch` when the patched script proves to be right and faster.

    Returns the ledger with a row of stage `patch`, and notes on lines that could not be placed.
    """
    root = patch_root(search.command)
    patch = write_patch(_edits(search.stack, context), root, Path.cwd())
    search.notes += _unplaced([(name, reason) for name, _, reason in patch.unplaced])
    if not patch.diff:
        return replace(ledger, notes=list(search.notes))
    search.on_progress("running the patched script against the script as it stood")
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-patched-"))
    try:
        shadow(patch.files, root, folder, script_path(search.command))
        gone = {name for name, _, _ in patch.unplaced}
        placed = [m for m in search.stack if label_of(m.technique, m.options) not in gone]
        row = search.patched(search.stack, patched_variant(search.command, root, folder), placed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    search.rows.append(row)
    if row.kept:
        write_atomically(out / PATCH_NAME, patch.diff.encode())
    else:
        search.notes.append(f"patch: not offered, {row.reason}")
    return replace(
        ledger,
        rows=search.ledger().rows,
        notes=list(search.notes),
        patch=str(out / PATCH_NAME) if row.kept else None,
    )


def _edits(stack: list[Applied], context: Context) -> list[tuple[str, Edit]]:
    return [
        (label_of(member.technique, member.options), edit)
        for member in stack
        for edit in technique(member.technique).edits(context, member.options)
    ]


def _unplaced(reasons: list[tuple[str, str]]) -> list[str]:
    """Which techniques could not be written down: each reason once, and no more than three."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    notes = [
        f"patch: {', '.join(dict.fromkeys(found))} could not be written into the script, {reason}"
        for reason, found in names.items()
    ]
    more = len(notes) - _REASONS
    return notes if more <= 0 else [*notes[:_REASONS], f"patch: and {more} reason(s) more"]


def patch_root(command: list[str]) -> Path:
    """The folder that the diff's paths are relative to.

    The repository of the script, or the project; where there is none, the folder where the user
    stands, or the script's own when it lies elsewhere.
    """
    script = script_path(command)
    here = Path.cwd()
    project = project_root(str(here if script is None else script.parent))
    if project is not None:
        return Path(project)
    if script is None or script.is_relative_to(here):
        return here
    return script.parent


def shadow(files: dict[Path, str], root: Path, folder: Path, script: Path | None) -> None:
    """Rebuild `root` in `folder`: patched files and the script as real files, links elsewhere.

    The script itself must be real: Python looks for its neighbours where the file really is.
    """
    real = {(root / path).resolve(): source for path, source in files.items()}
    if script is not None and script not in real:
        real[script] = script.read_text()
    opened: set[Path] = set()
    here = Path.cwd()
    stands = [here / "here"] if here.is_relative_to(root) else []  # it is imported from there
    for path in (*real, *stands):
        for parent in (root, *_between(root, path)):
            if parent not in opened:
                opened.add(parent)
                _open_folder(parent, folder / parent.relative_to(root))
    for path, source in real.items():
        target = folder / path.relative_to(root)
        target.unlink(missing_ok=True)
        target.write_text(source)


def _between(root: Path, path: Path) -> list[Path]:
    """Folders below `root` down to that of `path`, outermost first."""
    parents = [parent for parent in path.parents if parent.is_relative_to(root) and parent != root]
    return parents[::-1]


def _open_folder(original: Path, target: Path) -> None:
    """A real folder whose entries are links."""
    if target.is_symlink():
        target.unlink()
    target.mkdir(exist_ok=True)
    for entry in original.iterdir():
        link = target / entry.name
        if not link.exists() and not link.is_symlink():
            link.symlink_to(entry)


def patched_variant(command: list[str], root: Path, folder: Path) -> Variant:
    """The user's command on the shadow of its folder."""
    typed, script = script_of(command), script_path(command)
    words = list(command)
    if typed is not None and script is not None:
        words[words.index(typed)] = str(folder / script.relative_to(root))
    here = Path.cwd()
    cwd = folder / here.relative_to(root) if here.is_relative_to(root) else None
    return Variant(command=words, cwd=cwd)


__all__ = ["PATCH_NAME", "Patch", "prove_patch"]
