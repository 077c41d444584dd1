"""Keeps the user's files and processes as they were while their script is measured.

    guardian.py    the process that starts the script, outlives a killed conductor, and cleans up
    start.py       the conductor's end of it
    namespaces.py  the kernel's calls: unshare, mount, prctl
    mounts.py      which filesystems there are, and which folders to lay a view over
    view.py        the copy-on-write view: overlays in a mount namespace of the script's own
    changes.py     what the script wrote into its view
    kept.py        what was kept of files before they were changed, and putting it back

The guardian and what runs before the script's first line start in milliseconds: nothing here
may import more than the standard library. What may not enter: torch, what a step is.
Start reading at `guardian.py`.
"""
