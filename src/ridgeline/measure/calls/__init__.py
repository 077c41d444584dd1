"""Measure the calls of a model: in a closed loop, or paced as frames come.

    loop.py       call again and again, and note what happened beside each call: start here
    outliers.py   why some calls took longer, and the whole as a record
    memory.py     what the process has held at most

A closed loop keeps caches warm and the clock high; a camera leaves the processor idle between two
frames. Both are measured by the same loop. What may not enter: what is called, and judging it.
"""
