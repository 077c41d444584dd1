"""The steps of one script, timed as `doctor` times them, in the folder that this process runs in.

    python -m ridgeline.measure.bisect.time_steps train.py args…

prints the profile as JSON. A process of its own, because a script is measured where we stand.
"""

from __future__ import annotations

import sys

import msgspec

from ridgeline.errors import RidgelineError
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan

_PLAN = MeasurementPlan(steps=30, budget_seconds=60.0, window=0)


def main(command: list[str]) -> int:
    """Returns the exit code."""
    try:
        profile = measure(command, _PLAN)[0]
    except RidgelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(profile))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
