"""Why frames missed their deadline: the guilty stage, the kind of cause, and who ran beside it.

Pure functions from a `RealtimeRun` to causes: what was seen while the pipeline ran comes from
`realtime/observe/`. Where an observation is missing (a simulation, another system) the causes that
rest on it are never named. Start reading at `misses.py`.
"""

from ridgeline.realtime.blame.misses import blame, count_causes

__all__ = ["blame", "count_causes"]
