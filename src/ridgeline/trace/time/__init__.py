"""Where the time of a trace went: one file per question, each with its record.

`summary.py` is the first question to ask; `idle.py` says why the GPU waited, `launch.py` and
`sync.py` whether the host was the reason, `kernels.py`, `operators.py` and `steps.py` what ran.
"""
