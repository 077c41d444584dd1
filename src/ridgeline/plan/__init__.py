"""The search for the best layout of a training run, and for what to serve a model on.

The arithmetic is `cost/`'s. `training/` and `serving/` are alike, file for file; `simulate/` drives
the scheduler of `batching/` with the cost model as its clock; `fitting.py` is the one place where
coefficients are fitted, to published runs (by `bench/refit_*.py`) or to a user's own. What may not
enter: torch, measuring, printing. Start reading at `training/estimate.py`.
"""
