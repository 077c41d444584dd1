"""How many replicas there should be.

`serve/` asks it for real and `plan/` in simulation: a forecast is of the very policy that scales.

`policies.py` says what every policy sees (`Observation`) and what it is (`Policy`), and has two of
the three of `serve --scale-on`; `burn_rate.py` is the third, and `settings.py` makes one from
flags. `hpa.py` and `keda.py` compute what Kubernetes and KEDA compute.

No torch, no threads, no clock but the `now` that callers pass, and no process is started here.
"""
