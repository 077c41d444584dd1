"""The commits of a repository, and checkouts of them in a folder of our own.

The user's repository is only read. The checkouts are work trees of a clone that borrows its
objects (`git clone --shared`), so nothing is copied but the files of a commit, and whatever a
command does to its checkout (build, commit, clean) happens to the clone. Hooks do not run there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ridgeline.errors import InputError
from ridgeline.records.bisection import Commit

_FORMAT = "%H%x00%an%x00%aI%x00%s"


def clean_environment() -> dict[str, str]:
    """Our environment without what ties git to one repository, as inside of a hook."""
    tied = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
    return {name: value for name, value in os.environ.items() if name not in tied}


def _git(folder: Path, *words: str) -> str:
    """What git answers; its error as one line of ours."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            env=clean_environment(),
        )
    except FileNotFoundError:
        raise InputError("git is not installed; bisect searches its commits") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["git failed"]
        raise InputError(f"{folder}: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout


class Repository:
    """The user's repository, as far as a search reads it."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"--repo {folder}: no such folder")
        self.root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
        self.inside = _git(folder, "rev-parse", "--show-prefix").strip()
        """Where in it the command shall run; empty: at its root."""

    def commit(self, name: str) -> Commit:
        """The commit that a name means."""
        try:
            sha = _git(self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
        except InputError:
            raise InputError(f"{self.root}: no commit {name!r}") from None
        return self._commits("-1", sha)[0]

    def between(self, good: Commit, bad: Commit) -> list[Commit]:
        """Commits that may be at fault, oldest first: after `good`, up to and including `bad`.

        Of a merge only its first parent is followed: a merged branch is one step.
        """
        base = _git(self.root, "merge-base", good.sha, bad.sha).strip()
        if base != good.sha:
            raise InputError(
                f"{good.name} is no ancestor of {bad.name}; their common one is {base[:10]}: "
                "is it good?"
            )
        found = self._commits("--first-parent", "--reverse", f"{good.sha}..{bad.sha}")
        if not found:
            raise InputError(f"{good.name} and {bad.name} are the same commit")
        return found

    def branched_from(self, commit: Commit) -> str | None:
        """Where the branch that a merge brings began; None for a commit that is no merge."""
        parents = _git(self.root, "rev-list", "--parents", "-1", commit.sha).split()[1:]
        return _git(self.root, "merge-base", *parents[:2]).strip() if len(parents) > 1 else None

    def _commits(self, *words: str) -> list[Commit]:
        # A subject may hold anything but a line's end and a NUL.
        lines = _git(self.root, "log", f"--format={_FORMAT}", *words, "--").splitlines()
        rows = [line.split("\0") for line in lines if line]
        return [
            Commit(sha=sha, author=author, date=date, subject=subject)
            for sha, author, date, subject in rows
        ]


class Checkouts:
    """Checked-out commits in a temporary folder, which is gone when the block is left."""

    def __init__(self, repository: Repository, linked: Sequence[Path] = ()) -> None:
        self._repository = repository
        self._linked = [_below(repository.root, path) for path in linked]
        self._folder = Path()

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="ridgeline-bisect-"))
        try:
            root = str(self._repository.root)
            words = ["clone", "--quiet", "--shared", "--no-checkout", root, "repository"]
            _git(self._folder, *words)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def of(self, commit: Commit) -> Path:
        """The root of this commit's checkout, made when it is first asked for."""
        tree = self._folder / commit.sha
        if not tree.exists():
            words = ["worktree", "add", "--quiet", "--force", "--detach", str(tree), commit.sha]
            _git(self._folder / "repository", *words)
            for path in self._linked:
                link = tree / path
                if not link.exists() and not link.is_symlink():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(self._repository.root / path)
        return tree

    def drop(self, commit: Commit) -> None:
        """Remove a checkout that is not needed again."""
        shutil.rmtree(self._folder / commit.sha, ignore_errors=True)
        _git(self._folder / "repository", "worktree", "prune")

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _below(root: Path, path: Path) -> Path:
    """The path of something in the user's checkout, relative to its root."""
    whole = path if path.is_absolute() else Path.cwd() / path
    if not whole.exists():
        raise InputError(f"--link {path}: no such file or folder")
    whole = whole.parent.resolve() / whole.name
    if not whole.is_relative_to(root.resolve()) or whole == root.resolve():
        raise InputError(f"--link {path}: lies outside of {root}; commands reach it where it is")
    return whole.relative_to(root.resolve())
