"""The tuned stack against the script as it stood, and against the switches set by hand.

    python bench/tune_vs_hand.py [SCRIPT …]

"By hand" is what a careful engineer sets on a script without measuring: bfloat16 autocast, a
fused optimizer, loader workers, `torch.compile`, channels-last, gradients set to None, wherever
they apply. Both ratios are above 1 when the tuned stack is faster; each comes from a duel of
interleaved blocks of steps, with its interval. Default: every script in examples/.
"""

import platform
import sys
import tempfile
from pathlib import Path

import torch

from ridgeline.measure.probe import ceilings
from ridgeline.measure.wire import Applied
from ridgeline.techniques import Context, options_of, technique
from ridgeline.tune.duel import Contender, ContenderFailed, DuelPlan, duel
from ridgeline.tune.stack import read_stack
from ridgeline.tune.tuner import Job, tune

EXAMPLES = Path(__file__).parents[1] / "examples"
BY_HAND = (
    "bf16-autocast",
    "fused-optimizer",
    "loader-workers",
    "channels-last",
    "set-to-none",
    "compile",
)
BUDGET_SECONDS = 400.0
DUEL_SECONDS = 120.0


def stack_by_hand(context: Context) -> tuple[Applied, ...]:
    """The usual switches, with the first of each one's settings."""
    chosen = []
    for name in BY_HAND:
        module = technique(name)
        if module.applies(context).ok:
            chosen.append(Applied(technique=name, options=options_of(module, context)[0]))
    return tuple(chosen)


def measured(a: Contender, b: Contender) -> str:
    try:
        result = duel(a, b, DuelPlan(threshold=0.0, seconds=DUEL_SECONDS))
    except ContenderFailed as failure:
        return f"side {failure.side} fails: {failure}"
    interval = result.interval
    return f"{interval.ratio:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def judge(script: Path) -> None:
    command = [str(script)]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(command=command, out=Path(folder), budget_seconds=BUDGET_SECONDS)
        peaks = ceilings(quick=True)
        ledger = tune(job, ceilings=peaks)
        tuned: tuple[Applied, ...] = ()
        if ledger.stack is not None:
            tuned = tuple(read_stack(Path(ledger.stack)).applied())
    hand = stack_by_hand(Context(profile=ledger.baseline, ceilings=peaks))
    names = ", ".join(member.technique for member in tuned) or "nothing"
    print(f"{script.name}: tuned with {names}")
    low, high = ledger.cumulative_ci
    print(f"  as it stood / tuned: {ledger.cumulative:.3f} [{low:.3f}, {high:.3f}]")
    if hand == tuned:
        print("  by hand / tuned:     the same switches")
        return
    by_hand = Contender(command=command, stack=hand)
    ratio = measured(by_hand, Contender(command=command, stack=tuned))
    print(f"  by hand / tuned:     {ratio}  (by hand: {', '.join(m.technique for m in hand)})")


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    scripts = [Path(word) for word in sys.argv[1:]] or sorted(EXAMPLES.glob("*.py"))
    for script in scripts:
        judge(script)


if __name__ == "__main__":
    main()
