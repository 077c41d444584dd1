"""Cures of a pipeline measured side by side, proved, and stacked: `ridgeline realtime tune`.

    job.py        a job from the first frame to the ledger: start here
    asked.py      what the user asks for
    search.py     which cure is tried on top of what, and what is kept
    side.py       one variant of the pipeline in a process of its own
    wire.py       what the job asks of a side, and what it answers
    sides.py      such a process, from outside

What may not enter: any cure by its name.
"""
