"""What a training run will take before it is started, how sure that is, and which layout is best.

The arithmetic of one layout is `cost/training/`'s. Here a run is asked for (`question.py`) and
predicted (`estimate.py`) with the shipped coefficients (`coefficients.py`, `stacks.py`) or those
that a user's own steps moved (`measured.py`); published runs are read (`published.py`), laid out as
one computation (`prepared.py`) and judged (`validate.py`); layouts are enumerated
(`enumeration.py`), searched in bulk (`search.py`, `task.py`), ranked and explained (`plan.py`). The
files of `serving/` have the same names. Start reading at `estimate.py`.
"""
