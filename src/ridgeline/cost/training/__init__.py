"""The time and memory of one training step, over arrays of layouts.

`setting.py` turns model (`dimensions.py`), cluster, software (`workload.py`), layouts
(`layouts.py`) and coefficients (`coefficients.py`) into numbers; `step.py` puts the time together
from `layer.py` (`matmuls.py`, `attention.py`), `head.py`, `host.py` and `communication.py`
(`collectives.py`, `sharding.py`); `memory.py` has the bytes. What may not enter: files, devices by
name. Start reading at `estimate.py`.
"""
