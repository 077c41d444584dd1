"""Which commit to ask next, what the answer means, and what is known already.

The bad commit must be slower than the good one beyond noise and threshold, or there is nothing to
search. Then each step halves the commits that are left: a commit is *bad* when it lies nearer to
the bad end than to the good one (above the geometric middle of the two), *good* when it does not,
and *skipped* when it cannot be run; then its nearest neighbour is asked. Where several commits
made it slower by bits, that finds the one at which half of it was reached. In the end the commit
that was found is measured against the newest fast one.

Answers are kept in a file of their own until the search ends, so the same command goes on after
an interruption.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ridgeline.errors import InputError, Interrupted
from ridgeline.hardware.ceilings import cache_folder
from ridgeline.measure.bisect import decision
from ridgeline.measure.bisect.commits import Checkouts, Repository
from ridgeline.measure.bisect.timed_run import TIMED_WHOLE, RunFailed, TimedRun, run_once
from ridgeline.measure.statistics.intervals import RatioInterval
from ridgeline.measure.statistics.metric import MEDIAN, SampleMetric
from ridgeline.records.bisection import Bisection, Commit, Probe
from ridgeline.records.store import read_record, write_record

OnProgress = Callable[[str], None]
_PATIENCE = (30.0, 10.0)
"""A run may take this many seconds and this many times what the good commit took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to search for."""

    good: str
    bad: str
    command: list[str]
    repository: Path = Path()
    """A folder in it; the command runs in the same folder of every checkout."""
    metric: SampleMetric = MEDIAN
    threshold: float = 0.05
    """Smallest slowdown that is worth a search: 0.05 is 5 %."""
    most_rounds: int = 18
    linked: tuple[Path, ...] = ()
    """Files and folders of the user's checkout that no commit has, and the command needs."""

    def __post_init__(self) -> None:
        if not self.command:
            raise InputError("nothing to run; put it after `--`: ridgeline bisect v1 HEAD -- CMD")
        if not (math.isfinite(self.threshold) and self.threshold >= 0):
            raise InputError(f"--threshold {self.threshold}: must be 0 or above (0.05 means 5 %)")
        least, most = min(decision.STUDENT_995), max(decision.STUDENT_995)
        if not least <= self.most_rounds <= most:
            raise InputError(f"--rounds {self.most_rounds}: give {least} to {most}")


class _Known(msgspec.Struct, kw_only=True):
    """What was found out so far."""

    timed: str = ""
    total: Probe | None = None
    probes: list[Probe] = []


def bisect(question: Question, *, on_progress: OnProgress) -> Bisection:
    """Find the commit that made a script slower.

    Raises:
        InputError: no such commit, an end that cannot be run, or no slowdown between them.
        Interrupted: with what is known kept.
    """
    repository = Repository(question.repository)
    good, bad = repository.commit(question.good), repository.commit(question.bad)
    commits = repository.between(good, bad)
    memory = _Memory(question, repository, good, bad)
    with Checkouts(repository, question.linked) as checkouts:
        search = _Search(question, repository, checkouts, good, memory, on_progress)
        try:
            found = search.run(commits)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; {_many(len(memory.known.probes), 'commit')} asked so far, "
                "and the same command goes on from there"
            ) from None
    memory.forget()
    return found


class _Memory:
    """The answers on disk, in the user's cache: nothing is written into the repository."""

    def __init__(
        self, question: Question, repository: Repository, good: Commit, bad: Commit
    ) -> None:
        said = [str(repository.root), repository.inside, good.sha, bad.sha, question.metric.name]
        said += [str(question.threshold), *map(str, question.linked), *question.command]
        name = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
        self._path = cache_folder() / "bisect" / f"{name}.json"
        self.known = _Known()
        if self._path.exists():
            try:
                self.known = read_record(self._path, _Known, ours=True)
            except InputError:
                self._path.unlink()

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_record(self._path, self.known)

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Search:
    question: Question
    repository: Repository
    checkouts: Checkouts
    good: Commit
    memory: _Memory
    on_progress: OnProgress
    warm: set[str] = field(default_factory=set)
    patience_seconds: float | None = None

    def run(self, commits: list[Commit]) -> Bisection:
        """`commits` are oldest first; the last one is the bad end."""
        bad = commits[-1]
        total = self._ends(bad)
        assert total.ratio is not None
        level = math.sqrt(total.ratio)
        skipped: set[int] = set()
        low, high = -1, len(commits) - 1
        if self.memory.known.probes:
            asked = _many(len(self.memory.known.probes), "commit")
            self.on_progress(f"resuming: {asked} asked already")
        while True:
            open_ones = [i for i in range(low + 1, high) if i not in skipped]
            if not open_ones:
                break
            middle = min(open_ones, key=lambda i: abs(i - (low + high) / 2))
            steps = math.ceil(math.log2(len(open_ones) + 1))
            self.on_progress(
                f"{_many(len(open_ones), 'commit')} left, about {_many(steps, 'step')}: asking "
                f"{_named(commits[middle])}"
            )
            probe = self._ask(commits[middle], level)
            self.on_progress(f"{_named(probe.commit)} is {_in_words(probe)}")
            if probe.verdict == "skipped":
                skipped.add(middle)
            elif probe.verdict == "bad":
                high = middle
            else:
                low = middle
        parent = commits[low] if low >= 0 else self.good
        suspects = commits[low + 1 : high + 1]
        return self._answer(total, parent, suspects, commits[high])

    def _ends(self, bad: Commit) -> Probe:
        """The bad commit against the good one; refused where there is nothing to search."""
        known = self.memory.known
        if known.total is None:
            self.on_progress(f"measuring {_named(self.good)}, the good end")
            first = self._end("good", self.good)
            known.timed = first.what
            self._check_samples(first)
            self.on_progress(f"measuring {_named(bad)}, the bad end, beside it")
            self._end("bad", bad)
            interval = self._against(bad, 1 + self.question.threshold)
            self._refuse_without_slowdown(bad, interval)
            known.total = _probe(bad, interval, "bad", level=1 + self.question.threshold)
            self.memory.save()
        return known.total

    def _end(self, which: str, commit: Commit) -> TimedRun:
        try:
            return self._once(commit)
        except RunFailed as error:
            raise InputError(
                f"the {which} commit {_named(commit)} cannot be measured: {error}"
            ) from None

    def _check_samples(self, run: TimedRun) -> None:
        """A percentile of one run needs enough of them in it."""
        metric = self.question.metric
        if metric.over is None:
            return
        rarest = max(max(q, 1 - q) for q in (metric.over, metric.under) if q is not None)
        needed = math.ceil(1 / (1 - rarest) - 1e-9)
        if len(run.samples) < needed:
            raise InputError(
                f"--metric {metric.name} needs {needed} times from every run; a run of this "
                f"command gives {len(run.samples)} ({run.what})"
            )

    def _refuse_without_slowdown(self, bad: Commit, interval: RatioInterval) -> None:
        threshold = self.question.threshold
        if interval.low > 1 + threshold:
            return
        hint = "; were the two swapped?" if interval.high < 1 else ""
        raise InputError(
            f"no regression between {self.good.name} and {bad.name} beyond noise and "
            f"{threshold:.0%}: {_times(interval)} over {interval.rounds} rounds{hint}"
        )

    def _ask(self, commit: Commit, level: float) -> Probe:
        """Good, bad or skipped; remembered."""
        for probe in self.memory.known.probes:
            if probe.commit.sha == commit.sha:
                return probe
        try:
            self._once(commit)
            interval = self._against(commit, level)
            verdict = "bad" if interval.ratio > level else "good"
            probe = _probe(commit, interval, verdict, level=level)
        except RunFailed as error:
            probe = Probe(
                commit=commit,
                verdict="skipped",
                ratio=None,
                ci_low=None,
                ci_high=None,
                rounds=0,
                decided=True,
                reason=str(error),
            )
        self.memory.known.probes.append(probe)
        self.memory.save()
        return probe

    def _against(self, commit: Commit, level: float) -> RatioInterval:
        return decision.against(
            lambda: self._figure(self.good),
            lambda: self._figure(commit),
            level,
            most_rounds=self.question.most_rounds,
        )

    def _figure(self, commit: Commit) -> float:
        return self.question.metric.of(self._once(commit).samples)

    def _once(self, commit: Commit) -> TimedRun:
        """One run; the first of a checkout fills caches, and is left out if it was timed whole."""
        run = self._run(commit)
        if commit.sha not in self.warm and run.what in TIMED_WHOLE:
            run = self._run(commit)
        self.warm.add(commit.sha)
        known = self.memory.known
        if known.timed and run.what != known.timed:
            raise RunFailed(f"what it gives is a {run.what}, not a {known.timed} as at first")
        if self.patience_seconds is None:
            least, times = _PATIENCE
            self.patience_seconds = least + times * run.wall_seconds
        return run

    def _run(self, commit: Commit) -> TimedRun:
        return run_once(
            self.question.command,
            root=self.repository.root,
            inside=self.repository.inside,
            tree=self.checkouts.of(commit),
            patience_seconds=self.patience_seconds,
        )

    def _answer(
        self, total: Probe, parent: Commit, suspects: list[Commit], slow: Commit
    ) -> Bisection:
        self.on_progress(f"measuring {_named(slow)} against {_named(parent)}")
        try:
            self._once(parent)
            interval = decision.prove(
                lambda: self._figure(parent),
                lambda: self._figure(slow),
                most_rounds=self.question.most_rounds,
            )
        except RunFailed as error:
            raise InputError(f"{_named(slow)} could be run before and now not: {error}") from None
        bounded = math.isfinite(interval.high)
        question, known = self.question, self.memory.known
        return Bisection(
            command=question.command,
            repository=str(self.repository.root),
            metric=question.metric.name,
            timed=known.timed,
            threshold=question.threshold,
            good=self.good,
            bad=total.commit,
            total=total,
            culprit=suspects[0] if len(suspects) == 1 else None,
            suspects=suspects,
            parent=parent,
            ratio=interval.ratio,
            ci_low=interval.low if bounded else None,
            ci_high=interval.high if bounded else None,
            rounds=interval.rounds,
            proven=interval.low > 1,
            probes=known.probes,
            notes=self._notes(total, interval, suspects),
        )

    def _notes(self, total: Probe, interval: RatioInterval, suspects: list[Commit]) -> list[str]:
        notes = []
        assert total.ratio is not None
        if 1 < interval.high < total.ratio:
            notes.append(
                f"{total.ratio:.2f}× in all: other commits between the ends made it slower too"
            )
        unsure = [probe.commit.name for probe in self.memory.known.probes if not probe.decided]
        if unsure:
            notes.append(
                f"{', '.join(unsure)}: the rounds ran out before the noise did; "
                "more --rounds or a quieter machine decide"
            )
        base = self.repository.branched_from(suspects[0]) if len(suspects) == 1 else None
        if base is not None:
            name = suspects[0].name
            notes.append(
                f"{name} is a merge; of its branch's commits asks: "
                f"ridgeline bisect {base[:10]} {name}^2"
            )
        return notes


def _probe(commit: Commit, interval: RatioInterval, verdict: str, *, level: float) -> Probe:
    bounded = math.isfinite(interval.high)
    return Probe(
        commit=commit,
        verdict=verdict,
        ratio=interval.ratio,
        ci_low=interval.low if bounded else None,
        ci_high=interval.high if bounded else None,
        rounds=interval.rounds,
        decided=interval.low > level or interval.high < level,
        reason="",
    )


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _named(commit: Commit) -> str:
    subject = commit.subject if len(commit.subject) <= 50 else commit.subject[:49] + "…"
    return f"{commit.name} ({subject})"


def _times(interval: RatioInterval) -> str:
    return f"{interval.ratio:.3f}× the time [{interval.low:.3f}, {interval.high:.3f}]"


def _in_words(probe: Probe) -> str:
    if probe.ratio is None:
        return f"skipped: {probe.reason}"
    return f"{probe.verdict}: {probe.ratio:.3f}× the good one's time over {probe.rounds} rounds"
