"""How many replicas there should be.

`serve/` asks it for real and `plan/` in simulation: a forecast is of the very policy that scales.

`observation.py` is what every policy sees (`Observation`) and what it is (`Policy`); start there.
`open_requests.py`, `kv_usage.py` and `burn_rate.py` are the three of `serve --scale-on`,
`stabilised.py` gives any policy bounds and patience, `settings.py` makes one from flags. `hpa.py`
and `keda.py` compute what Kubernetes and KEDA compute.

No torch, no threads, no clock but the `now` that callers pass, and no process is started here.
"""
