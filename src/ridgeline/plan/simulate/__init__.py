"""The simulation of a fleet: the scheduler that serves, on a clock that is not real.

`replica.py` drives one `batching.scheduler.Scheduler`, whose steps take the time that a clock says
(`cost/serving/clock.py`, its numbers from published runs or fitted to a measured engine by
`fit.py`). `fleet.py` brings requests to replicas and scales them (`slots.py`), `deployment.py` says
what runs on what, `run.py` is the whole answer with its interval and what-ifs. No torch, no
waiting, no printing. Start reading at `replica.py`.
"""
