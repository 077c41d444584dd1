"""What is seen beside a run, for blame: counters around calls, a process that looks from outside.

Each worker writes what its calls used into memory that it shares with the others (`board.py`,
`call_meter.py`): nothing has to travel through the executors, and a process that was killed leaves
what it wrote. A small process (`watcher.py`) looks at calls that last too long and at what else
uses the machine. `run_observer.py` starts both and puts what they saw into the run. Together they
take less than one percent of a core at 30 frames per second (`bench/realtime_blame.py`).

What may not enter: judgement (`realtime/blame/`). Linux only; elsewhere nothing is observed and the
run says so.
"""
