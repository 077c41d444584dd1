"""Traces side by side: where B's time differs from A's, and whether that is more than noise.

`rank_times` makes of each trace what a comparison needs (`times.py`), small enough to keep a
thousand of them; `comparison.py` puts two sides on one scale and judges; `matching.py` finds the
same work in two trees of operators, whose kernels may be another vendor's; `noise.py` says how far
a time may be off.
"""
