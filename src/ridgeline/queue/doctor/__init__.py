"""What is wrong with a cluster at one moment, and how many GPUs that costs.

`state.py` is the cluster as readers hand it over, `room.py` tries what would start where, and each
rule is one file of `rules/`. Nothing here talks to a cluster. Start reading at `diagnose.py`.
"""
