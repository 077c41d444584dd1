"""Serving before buying: what a fleet will do, how sure that is, and what to buy.

The arithmetic of a step is `cost/inference.py`, that of a load `cost/serving_load.py`. Here a
model is put on devices (`hosting.py`), published runs are read (`published.py`) and predicted
(`outcome.py`), the few coefficients are fitted to them (`fit.py`, `priors.toml`), errors are judged
(`validate.py`), and deployments searched (`search.py`). No torch, no measuring, no printing. Start
reading at `outcome.py`.
"""
