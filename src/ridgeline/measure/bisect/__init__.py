"""Which commit made a command slower: a search over git commits by repeated, interleaved runs.

`commits.py` reads the user's repository and checks commits out elsewhere; `timed_run.py` runs the
command once in a checkout and says how long it took; `decision.py` holds two commits against each
other until the noise is decided; `search.py` chooses which commit to ask next and remembers the
answers. What may not enter: torch, printing, and anything that writes into the user's repository.
Start reading at `search.py`.
"""
