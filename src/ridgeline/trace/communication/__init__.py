"""What collectives cost one rank, what hides it, and who made the others wait.

`collectives.py` and `overlap.py` look at one rank. `matching.py` puts ranks on one clock and finds
their common collectives; `stragglers.py` asks who came last to them.
"""
