"""What a served fleet will do before it is bought, how sure that is, and what to buy.

The arithmetic of a step and of a load is `cost/serving/`'s. Here a replica is asked for
(`question.py`) and predicted (`estimate.py`) with the shipped coefficients (`coefficients.py`,
`engines.py`); published runs are read (`published.py`), laid out as one computation (`prepared.py`)
and judged (`validate.py`); deployments are searched (`plan.py`). The files of `training/` have the
same names. Start reading at `estimate.py`.
"""
