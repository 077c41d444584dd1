"""What the windows of one measured run gave: warm-up, timed steps, and looks under instruments."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.wire import Report

FEW_STEPS = 4


@dataclass(slots=True)
class RunWindows:
    """Everything that one run gave, by kind of window; lists of reports are one per rank."""

    warmup_seconds: list[float] = field(default_factory=list)
    timed: list[Report] = field(default_factory=list)
    slow: list[list[Report]] = field(default_factory=list)
    """Steps of the warm-up that ran one by one."""
    looks: dict[str, list[Report]] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    """Instruments that were asked for, whether they could look or not."""
    losses: list[list[float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seen_steps: int = 0
    forwards_without_steps: bool = False
    """The script called a model but ended without a step."""
    ended: bool = False
    complete: bool = False
    steady: bool = False
    ranks: int = 1
    device: str = "cpu"
    """What the script said it runs on."""
    output: str = ""
    outcome: Outcome | None = None
    """What the script would have left."""

    def saw(self, reports: list[Report]) -> None:
        """Take note of a block on every rank."""
        if not self.losses:
            self.losses = [[] for _ in reports]
        for losses, report in zip(self.losses, reports, strict=True):
            losses.extend(report.losses)
        self.seen_steps += len(reports[0].steps)
        for report in reports:
            self.warnings += [w for w in report.warnings if w not in self.warnings]
        if any(report.ended for report in reports):
            self.ended = True
            self.forwards_without_steps = self.seen_steps == 0 and reports[0].forwards_seen > 0

    def seconds(self) -> list[float]:
        """Seconds of the timed steps, or of the last step before them when there are none."""
        if self.timed and self.timed[0].steps:
            return [step.seconds for step in self.timed[0].steps]
        return [step.seconds for reports in self.slow[-1:] for step in reports[0].steps]

    def settle(self) -> None:
        """Let the last slow step speak where none could be timed, and say how few there are."""
        if not (self.timed and self.timed[0].steps) and self.seconds():
            self.timed = self.slow[-1]
            self.warmup_seconds = self.warmup_seconds[:-1]
            self.steady = False
        if 0 < len(self.seconds()) < FEW_STEPS and max(self.seconds()) > 1.0:
            few = len(self.seconds())
            self.warnings.append(
                f"from {few} step{'s' if few > 1 else ''}: there was no time for more, and what "
                "one step differs from another is not known; --budget gives it more"
            )

    def look(self, name: str, rank: int) -> Report | None:
        """What an instrument reported on one rank; None when it did not run."""
        reports = self.looks.get(name)
        return reports[rank] if reports else None
