"""The time of a serving engine's step, and what a load makes of it, over arrays of cases.

`setting.py` turns model, device and weights into numbers, `coefficients.py` says what engines make
of the hardware; `step.py` has one step, `clock.py` one step after another for simulations,
`load.py` latency and throughput. `kv_cache.py`, `decode.py` and `speculation.py` are the textbook.
What may not enter: files, measuring. Start reading at `step.py`.
"""
