"""What a record says, in words and selections that the terminal and the page share."""

from __future__ import annotations

import math
from pathlib import PurePath
from statistics import median

from ridgeline import quantity
from ridgeline.records import Environment, Finding, Ledger, LedgerRow, StepProfile, Verdict

MEANING = {
    Verdict.INPUT_BOUND: "the step waits for its next batch",
    Verdict.HOST_BOUND: "Python and dispatch cost more than the arithmetic they start",
    Verdict.SYNC_BOUND: "the host stops and waits for the device",
    Verdict.MEMORY_BOUND: "time goes into moving bytes, not into arithmetic",
    Verdict.COMPUTE_BOUND: "time goes into arithmetic",
    Verdict.COMMUNICATION_BOUND: "time goes into exchanging gradients",
    Verdict.MEMORY_CAPACITY_BOUND: "memory is full: it decides the batch and the layout",
}

MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "other")
SMALLEST_STARTUP_SECONDS = 1.0
"""A start that is later by less is not spoken of: starts differ by as much from run to run."""
SMALLEST_SHARE = 0.0005
"""Phases below this share of the step are left out of pictures."""


def script_name(environment: Environment) -> str:
    """The script without its folders, e.g. `train_gpt.py`."""
    for word in environment.command:
        if not word.startswith("-"):
            return PurePath(word).name or word
    return "script"


def machine(environment: Environment) -> str:
    """What it ran on, in a few words."""
    cores = f"{environment.cpu_count} CPUs"
    if environment.device in ("", environment.host_cpu, "cpu"):
        return f"{environment.host_cpu}, {cores}"
    return f"{environment.device} on {environment.host_cpu}, {cores}"


def measured(profile: StepProfile) -> str:
    """How much stands behind the numbers."""
    name = "steps" if profile.kind == "training" else "calls"
    text = f"{profile.steps} {name} after {profile.warmup_steps} of warm-up"
    if profile.world_size > 1:
        text += f", rank {profile.rank} of {profile.world_size}"
    return text if profile.steady else text + ", not yet steady"


def files_statement(profile: StepProfile) -> str | None:
    """What the script wrote while it was measured, and that it is gone; None: it is not known."""
    seen = profile.side_effects
    if seen is None:
        return None
    offline = f" Kept offline: {', '.join(seen.offline)}." * bool(seen.offline)
    if seen.unprotected:
        return f"Your files: NOT all as they were: {'; '.join(seen.unprotected)}.{offline}"
    if seen.files == 0:
        return f"Your files: as they were; the script wrote none.{offline}"
    folder = profile.environment.cwd.rstrip("/") + "/"
    names = ", ".join(path.removeprefix(folder) for path in seen.first_files)
    more = ", …" if seen.files > len(seen.first_files) else ""
    count = f"{seen.files} file" + "s" * (seen.files != 1)
    wrote = f"what the script wrote ({count}: {names}{more}) is undone"
    return f"Your files: as they were; {wrote}.{offline}"


def few_steps(profile: StepProfile) -> str:
    """What a verdict that stands on hardly a step has to add."""
    if profile.steps >= 4:
        return ""
    return f" (from {profile.steps} step{'s' if profile.steps > 1 else ''})"


def place(where: str, width: int) -> str:
    """`file:line` in so many columns: what gives way is the middle of the path.

    >>> place("src/train.py:12", 40), place("/home/me/projects/vision/src/train.py:12", 28)
    ('src/train.py:12', '/home/me…ion/src/train.py:12')
    """
    if len(where) <= width:
        return where
    file, colon, line = where.rpartition(":")
    room = max(width - len(colon + line) - 1, 8)
    head = room // 3
    return f"{file[:head]}…{file[len(file) - (room - head) :]}{colon}{line}"


def limit_statement(profile: StepProfile) -> str:
    """How near the hardware's limit the step is."""
    if not profile.operators:
        return "how far the hardware's limit is was not looked at"
    return f"{quantity.percent(profile.limit_fraction)} of the hardware limit"


def clean_statement(profile: StepProfile) -> str:
    """What a script without findings is told."""
    if not profile.operators:
        return "Nothing was found in the phases alone; operators were not looked at."
    distance = max(0.0, 1 - profile.limit_fraction)
    return f"Nothing worth doing: {quantity.percent(distance)} from the limit."


def rates(profile: StepProfile) -> list[tuple[str, str]]:
    """The headline numbers of a profile, label first."""
    step = "step" if profile.kind == "training" else "call"
    facts = [
        (f"median {step}", quantity.seconds(profile.step_seconds.p50)),
        ("p95", quantity.seconds(profile.step_seconds.p95)),
        *(tail(profile) if profile.kind == "inference" else []),
    ]
    if profile.samples_per_second is not None:
        facts.append(("samples/s", quantity.count(profile.samples_per_second)))
    if profile.tokens_per_second is not None:
        facts.append(("tokens/s", quantity.count(profile.tokens_per_second)))
    if profile.mfu is not None:
        facts.append(("MFU", quantity.percent(profile.mfu)))
    if profile.peak_memory_bytes:
        facts.append(("peak memory", quantity.memory(profile.peak_memory_bytes)))
    return facts


def tail(profile: StepProfile) -> list[tuple[str, str]]:
    """The slowest in a hundred calls, by which whoever waits for answers judges a script."""
    times = profile.step_seconds
    if times.p50 <= 0:
        return []
    return [
        ("p99", quantity.seconds(times.p99)),
        ("p99/p50", quantity.ratio(times.p99 / times.p50)),
    ]


def phases(profile: StepProfile) -> list[tuple[str, float]]:
    """Phases that took part in the step, with their share of its mean, in the order of a step."""
    total = sum(phase.mean for phase in profile.phases.values()) or 1.0
    shares = [(name, phase.mean / total) for name, phase in profile.phases.items()]
    return [(name, share) for name, share in shares if share >= SMALLEST_SHARE]


def memory_parts(profile: StepProfile) -> list[tuple[str, int]]:
    """What the bytes at the peak were for; empty parts left out."""
    parts = [(kind, getattr(profile.memory, f"{kind}_bytes")) for kind in MEMORY_KINDS]
    return [(kind, size) for kind, size in parts if size > 0]


def confidence(finding: Finding) -> str:
    """How sure a finding is, in a word."""
    if finding.confidence >= 0.85:
        return "sure"
    return "likely" if finding.confidence >= 0.6 else "possible"


def gain(finding: Finding) -> str:
    """The speed-up to expect of a cure."""
    low, high = quantity.ratio(finding.gain_low), quantity.ratio(finding.gain_high)
    if finding.gain_high <= 1.0:
        return "no time"
    return high if low == high else f"{low[:-1]}–{high}"


def evidence(finding: Finding) -> list[tuple[str, str]]:
    """The numbers behind a finding; the unit in a key becomes the unit of its value."""
    return [_fact(key, value) for key, value in finding.evidence.items() if key != "share"]


def _fact(key: str, value: float | str) -> tuple[str, str]:
    key = key.removeprefix("num_")
    words = key.replace("_", " ")
    if isinstance(value, str):
        return words, value
    for suffix, show in (
        ("_flops_per_second", lambda number: quantity.scaled(number, "FLOP/s")),
        ("_bytes_per_second", lambda number: quantity.scaled(number, "B/s")),
        ("_seconds", quantity.seconds),
        ("_bytes", quantity.memory),
        ("_flops", lambda number: quantity.scaled(number, "FLOP")),
        ("_share", quantity.percent),
        ("_fraction", quantity.percent),
        ("_ratio", quantity.ratio),
    ):
        if key.endswith(suffix):
            return key.removesuffix(suffix).replace("_", " "), show(value)
    whole = float(value) == int(value) if math.isfinite(value) else False
    return words, quantity.count(value) if whole else quantity.digits(value)


def options(row: LedgerRow) -> str:
    """The options of a technique, e.g. `dtype=bfloat16`."""
    return " ".join(f"{name}={value}" for name, value in row.options.items())


def stack_rows(ledger: Ledger) -> list[LedgerRow]:
    """The rows that make up the final stack: kept, and not removed by a later re-try."""
    return ledger.final_rows


def was_measured(row: LedgerRow) -> bool:
    """Whether there are numbers behind a row; there are none for what did not apply."""
    return row.rounds > 0


def row_name(row: LedgerRow) -> str:
    """The technique, and whether it was tried again after it had been kept."""
    return row.technique + (", re-tried" if row.stage == "leave-one-out" else "")


def remark(row: LedgerRow, *, in_stack: bool) -> str:
    """Why a row stands where it stands: its proof, or what spoke against it."""
    if in_stack:
        return row.verification
    if row.kept and row.stage == "add":
        return "taken out again when it was re-tried"
    return row.reason


def break_even(row: LedgerRow, ledger: Ledger) -> str:
    """When a row's slower start has paid for itself; empty where nothing is to be said."""
    extra = row.startup_seconds
    if extra is None or extra < SMALLEST_STARTUP_SECONDS:
        return ""
    starts = f"starts {quantity.seconds(extra)} later"
    if row.pays_after_steps is None:
        return f"{starts}, which it never earns"
    steps = max(1, math.ceil(row.pays_after_steps))
    text = f"{starts}, pays after {quantity.count(steps)} step{'s' if steps > 1 else ''}"
    if ledger.bill is not None and ledger.bill.steps < steps:
        return f"{text}: not within this run of {quantity.count(ledger.bill.steps)}"
    return text


def proven(ledger: Ledger) -> str:
    """How the stack as a whole was proved, in a few words."""
    rows = stack_rows(ledger)
    if not rows:
        return "no technique survived measurement"
    if not ledger.complete:
        return "interrupted: proven so far"
    if ledger.loss_check is not None and not ledger.loss_check.passed:
        return "the stack as a whole failed its loss check"
    return "verified" if all(row.verified for row in rows) else "not verified"


def claim(ledger: Ledger) -> str:
    """What the stack as a whole gained, in the words that its number allows."""
    if not stack_rows(ledger):
        return "No technique made it faster"
    word = "faster" if ledger.cumulative > 1 else "the speed"
    return f"{quantity.ratio(ledger.cumulative)} {word}"


def ledger_steps(ledger: Ledger) -> tuple[float, float]:
    """Step of the script as it stood and with the full stack: their quotient is the claim."""
    if ledger.step_seconds is not None:
        return ledger.step_seconds
    samples = ledger.samples
    if samples.get("baseline") and samples.get("tuned"):
        return median(samples["baseline"]), median(samples["tuned"])
    before = ledger.baseline.step_seconds.p50
    return before, before / ledger.cumulative


def row_total(ledger: Ledger, row: LedgerRow) -> float:
    """What the stack up to and including a row gains.

    The product of the rows; of the last row what was measured directly, all at once, because
    that is the same stack: the headline and the last total are one number.
    """
    stack = stack_rows(ledger)
    is_last = bool(stack) and row is stack[-1]
    return ledger.cumulative if is_last and ledger.step_seconds is not None else row.cumulative


def row_step(ledger: Ledger, row: LedgerRow, *, in_stack: bool) -> float:
    """The step with a row applied, on the headline's clock.

    Each row was timed in a duel of its own, when the machine was faster or slower than in the
    one behind the headline. Ratios survive that, seconds do not: so the ratios are applied to
    the headline's step.
    """
    before, _ = ledger_steps(ledger)
    if in_stack or row.stage == "leave-one-out":
        return before / row_total(ledger, row)
    below = 1.0 if row.stage == "patch" else row.cumulative
    return before / (below * row.multiplier)
