"""How old results grow when a camera sends twice what a pipeline can do, with each kind of edge.

    python bench/realtime_overload.py [--frames 400] [--executor threads]

Runs `examples/realtime/overload.py` for real. The bound for edges where old frames give way is the
age without overload, one period and the slowest stage, all of the same run of this script; the last
fifth of the frames beside the first fifth shows what grows without limit.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import numpy as np

from ridgeline.frames.outcomes import measured_fates
from ridgeline.realtime.execute import execute
from ridgeline.records.realtime_run import RealtimeRun

EXAMPLE = Path(__file__).parents[1] / "examples" / "realtime" / "overload.py"
SINK = "follow"


def main() -> None:
    """Print a line for each kind of edge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--executor", choices=("inline", "threads", "processes"), default="threads")
    given = parser.parse_args()
    make = runpy.run_path(str(EXAMPLE))["pipeline"]

    def run(policy: str, overload: float) -> RealtimeRun:
        made = make(policy, overload=overload)
        return execute(made, executor=given.executor, frames=given.frames)

    calm = np.percentile(_ages(run("block", 0.25)), 99)
    print(f"without overload: age p99 {1e3 * calm:.1f} ms")
    print("edge          results  age p50     p99   bound  p99/bound  last fifth / first fifth")
    for policy in ("latest-only", "drop-oldest", "block", "unbounded"):
        done = run(policy, 2.0)
        ages = _ages(done)
        period = 1 / (done.shape.sensors[0].rate_hz or np.inf)
        bound = calm + period + _slowest(done)
        fifth = max(1, len(ages) // 5)
        print(
            f"{policy:12} {len(ages):8} {1e3 * np.median(ages):8.1f}"
            f"{1e3 * np.percentile(ages, 99):8.1f}{1e3 * bound:8.1f}"
            f"{np.percentile(ages, 99) / bound:10.2f}×"
            f"{np.median(ages[-fifth:]) / np.median(ages[:fifth]):12.1f}×"
        )


def _ages(run: RealtimeRun) -> np.ndarray:
    """Seconds from stamp to result of all that came out, in order."""
    fates = measured_fates(run, SINK)
    rows = zip(fates.stamps, fates.ended, fates.kinds, strict=True)
    return np.array([e - s for s, e, kind in rows if e and kind in ("delivered", "late")])


def _slowest(run: RealtimeRun) -> float:
    """The slowest stage's 99th percentile, in seconds."""
    return max(
        float(np.percentile(np.subtract(calls.ended, calls.started), 99)) for calls in run.calls
    )


if __name__ == "__main__":
    main()
