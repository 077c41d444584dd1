"""Keeps the user's files and processes as they were while their script is measured.

    guardian.py    the process that starts the script, outlives a killed conductor, and cleans up
    start.py       the conductor's end of it
    terminal.py    a terminal for the script of a user who sits at one
    namespaces.py  the kernel's calls: unshare, mount, prctl
    mounts.py      which filesystems there are, and which folders to lay a view over
    view.py        the copy-on-write view: overlays in a mount namespace of the script's own
    surroundings.py  what a run shares with other programs, and what belongs to its user
    changes.py     what the script wrote into its view
    inside.py      in each process of the run, before its first line; libraries tell it too
    keep.py        an audit hook that keeps what files were before they are changed
    on_import.py   to be told when those are imported
    kept.py        what was kept, putting it back, and whether that was all
    offline.py     what a script would send elsewhere; the libraries stand in offline.toml

The guardian and what runs before the script's first line start in milliseconds: nothing here
may import more than the standard library. What may not enter: torch, what a step is.
Start reading at `guardian.py`.
"""
