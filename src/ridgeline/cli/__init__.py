"""The command line has one file per command, each thin: parse, call, show.

What may not enter: how anything works. Every command takes `--json` (one document on stdout,
everything else on stderr) and raises `RidgelineError`s; `main.py` turns them into one line and
an exit code. A new command is one file here and one row in `commands.COMMANDS`.
"""
