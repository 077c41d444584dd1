"""The stack of cures that survived measurement, and those that did not."""

from __future__ import annotations

import msgspec

from ridgeline.records.calls import CallTimes
from ridgeline.records.finding import Finding
from ridgeline.records.measurement import Environment
from ridgeline.records.profile import StepProfile
from ridgeline.records.tagged import TaggedRecord

Options = dict[str, int | float | str | bool]
NOT_BEGUN = "not begun"
"""How the reason begins of a technique for which too little time was left."""


class LossCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Does a changed run still train the same model? Losses by step, beside the seed spread."""

    passed: bool
    kind: str
    """What the technique may do: `bit-equal`, `rounding`, `reduced-precision` or `statistical`."""
    summary: str
    steps: int
    max_abs_difference: float
    seed_spread: float | None
    """RMS difference of the baseline from itself under other seeds; None when not measured."""
    baseline: list[float]
    candidate: list[float]
    shaken: list[float] = []
    """Losses of the baseline disturbed by as much as rounding; empty: not needed."""
    untold: bool = False
    """It did not pass because the run that tells rounding from error could not be made."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One technique, measured side by side with the stack above it."""

    technique: str
    options: Options = {}
    multiplier: float
    """Time of the stack above over time with this technique added (above 1 is faster)."""
    ci_low: float
    ci_high: float
    cumulative: float
    """Product of the multipliers of the kept rows up to and including this one."""
    step_seconds: float
    """Step with this row applied, from the rounds behind the multiplier."""
    baseline_step_seconds: float
    """Step of the stack above, from the same rounds: their quotient is the multiplier."""
    peak_memory_bytes: int
    verified: bool
    verification: str
    """What was checked and how it came out, in one line."""
    kept: bool
    reason: str
    """Why it was kept or not."""
    stage: str = "add"
    """`add` (tried on top of the stack) or `leave-one-out` (re-tried without it)."""
    loss_check: LossCheck | None = None
    rounds: int = 0
    """Interleaved rounds behind the interval."""
    together: dict[str, Options] = {}
    """Technique → options of those that were added as one; empty for a single technique."""
    expected: tuple[float, float] | None = None
    """The multiplier that was foretold before it was measured, low and high; null where nothing
    was foretold."""
    modelled: tuple[float, float] | None = None
    """The multiplier by the techniques' own models alone (of several, the product), without the
    margin that their record on public scripts asks for."""
    costs: str = ""
    """What the technique costs in memory, start-up, exactness or readability, by its card."""
    startup_seconds: float | None = None
    """What the script needs longer with it until its pace is steady (compilation, workers that
    start), in the same A/B run; below 0 it starts faster; null where that was not measured."""
    pays_after_steps: float | None = None
    """Steps after which the faster step has earned that start-up; null where it was not measured,
    or is never earned."""
    run_seconds: float | None = None
    """The whole run with the stack up to and including this row; null where the row is not in the
    stack or the length of the run is not known."""
    usd: float | None = None
    """What that run costs; null where the price is not known either."""

    @property
    def members(self) -> list[str]:
        """Names of the techniques that the row is about."""
        return list(self.together) or [self.technique]


class PacedCalls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one variant of a script at the period of frames, beside a closed loop."""

    name: str
    """`as it stood` or `tuned`."""
    closed: CallTimes
    """Each call begins when the one before has ended."""
    paced: CallTimes


class RunBill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the whole training run takes and costs: as the script stood, and with the stack."""

    steps: float
    """Steps of the whole run."""
    steps_from: str
    """Who says how many: `--steps-to-train`, or `--run-hours` and the step as it stood."""
    usd_per_hour: float | None
    """Price of everything that runs the script; null where no price is known."""
    price_from: str
    """Where the price comes from, or why there is none."""
    step_seconds: float
    """Mean step as the script stood: sums of steps are what a run takes."""
    run_seconds: float
    usd: float | None
    tuned_step_seconds: float
    """The above over the ledger's `cumulative`."""
    tuned_run_seconds: float
    tuned_usd: float | None
    tuned_run_seconds_ci: tuple[float, float] | None
    """By the interval of `cumulative`; null where that bounds nothing."""


class Ledger(TaggedRecord, frozen=True, kw_only=True, tag="tuning"):
    """Everything that `ridgeline tune` proved about one script."""

    baseline: StepProfile
    tuned: StepProfile | None
    rows: list[LedgerRow]
    """In the order tried; the stack is the kept rows that no later row removed."""
    cumulative: float
    """Baseline over full stack, measured directly side by side (not the product)."""
    cumulative_ci: tuple[float, float]
    step_seconds: tuple[float, float] | None = None
    """Step of the baseline and of the full stack, from the rounds behind `cumulative`, which is
    their quotient; None where no stack was proved."""
    loss_check: LossCheck | None
    findings: list[Finding]
    stack: str | None
    """The path of `stack.toml`."""
    report: str | None
    patch: str | None
    environment: Environment
    complete: bool
    """False for what was left by an interruption."""
    stack_rows: list[str] = []
    """Names of the techniques in the final stack, in order."""
    notes: list[str] = []
    skipped: dict[str, str] = {}
    """Technique → why it was not tried."""
    samples: dict[str, list[float]] = {}
    """Step seconds of the last side-by-side run: `baseline` and `tuned`, for `compare`."""
    paced: list[PacedCalls] = []
    """Calls at the period that `--period` asks for; empty without it."""
    bill: RunBill | None = None
    """What the whole run costs; null where its length was not given."""

    @property
    def final_rows(self) -> list[LedgerRow]:
        """The rows that make up the final stack: kept, and not removed by a later re-try."""
        kept = [row for row in self.rows if row.stage == "add" and row.kept]
        if self.stack_rows or self.complete:
            return [row for row in kept if set(row.members) <= set(self.stack_rows)]
        removed = {row.technique for row in self.rows if row.stage != "add" and not row.kept}
        return [row for row in kept if row.technique not in removed]
