"""Tensors are computed on beside the training itself: copies of the model, statistics, metrics.

Time outside of forward, backward, optimizer and loading, at lines that are not the loss, not
clipping, and that no other rule explains; nor in operators that autograd notes, as of a model that
is called by a method of its own. Whether a script needs what such a line computes is not
for a profile to say, so the claim is a modest one: here it is, and this is what it costs.
"""

from __future__ import annotations

from collections import Counter

from ridgeline.diagnose.reading import Reading, duration, is_on, percent, total_seconds
from ridgeline.records import Finding, HotLine
from ridgeline.records.script_facts import HabitName

CAUSES = ("side-work",)

_TRAINING = ("torch.nn.", "torch.optim.", "torch.autograd.", "torch.amp.", "gc.")
"""What runs at the bottom of lines that are part of training: loss, clipping, zeroing, scaling."""
_REPORTED: tuple[HabitName, ...] = ("save", "gc_collect", "evaluation")
"""Habits that rules of their own speak of."""


def find(reading: Reading) -> list[Finding]:
    """Sampled time in the `other` phase, as far as operators account for it."""
    lines = [line for line in reading.profile.hot_lines if _counts(reading, line)]
    sampled = sum(line.share for line in lines) * reading.step_seconds
    operators = reading.operators(phases=("other",))
    beside = total_seconds(operators) - reading.profile.habit("towards_loss").seconds
    seconds = min(sampled, beside)
    if not lines or seconds <= 0:
        return []
    # Work on all weights (copying, averaging, measuring them) rarely has to be done every step;
    # work on the batch may have to.
    weights = reading.weight_shapes()
    on_weights = min(seconds, total_seconds(op for op in operators if is_on(op, weights)))
    mostly = on_weights > 0.4 * seconds
    trains = reading.profile.kind == "training"
    seen: Counter[str] = Counter()
    for line in lines:
        seen[str(line.site)] += round(1e6 * line.share)
    return reading.finding(
        "side-work",
        touched_seconds=seconds,
        saves_seconds=((0.5 if mostly else 0.1) * seconds, (0.95 if mostly else 0.8) * seconds),
        confidence=0.65 if mostly else 0.5,
        summary=f"{duration(seconds)} per step, {percent(reading.share(seconds))} of it, go into "
        f"{'the weights' if mostly else 'tensors'} outside of "
        f"{'forward, backward and optimizer' if trains else 'the model'}.",
        evidence={
            "side_work_seconds": seconds,
            "on_weights_seconds": on_weights,
            "other_seconds": reading.phase_seconds("other"),
            "hottest_function": lines[0].leaf,
        },
        where=[place for place, _ in seen.most_common(3)],
        cure="Do it every so many steps, on less, or in place, if the training does not depend on "
        "it."
        if trains
        else "Do it on less, in place, in larger batches, or beside the model's next call.",
        effort="line" if mostly else "code",
    )


def _counts(reading: Reading, line: HotLine) -> bool:
    explained = {str(p.site) for p in reading.profile.sync_points if p.calls >= 1}
    explained |= {
        str(site) for name in _REPORTED if (site := reading.profile.habit(name).site) is not None
    }
    return (
        line.phase == "other"
        and bool(line.site.file)
        and str(line.site) not in explained
        and not line.leaf.startswith(_TRAINING)
    )
