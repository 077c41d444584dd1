"""The chain of moments that made the run as long as it was: its critical path; and what-if.

Each rank's trace becomes a graph (`moments.py`), which `dependencies.py` builds with `waits.py`. Of
it only what the job needs is kept (`rank_path.py`); `joined_ranks.py` puts ranks together and
`path.py` answers.
"""
