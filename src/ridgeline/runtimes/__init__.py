"""Programs other than eager PyTorch that run a module: converted, loaded, called.

One file per runtime, of one shape, found by being there; a new runtime is a new file. `export/`
writes, checks and measures what they make; techniques put them under a running script.

What may not enter: judging and timing (`export/`, `tune/`), and an import of a runtime outside of
the function that needs it.
"""
