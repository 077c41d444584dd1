"""The parent's side of a measured run: start the script, tell it how many steps to run, read it.

    command.py         what stands after `--`, as an argv
    conductor.py       the conversation with every rank of one run
    script_process.py  the process tree of that run: frozen, thawed, interrupted, killed
    patience.py        how long an answer may take, and what is said of the wait meanwhile
    crash.py           how a script ended that failed; alone.py asks whether it also does without us
    profile.py         one script measured, and measured again where the plan did not fit it
    windows.py         warm up, time, look closer: which windows of steps one measurement takes
    assemble.py        what those windows gave → `StepProfile`, one per rank
    operator_times.py  the operators of a profile: their time, and the roofline over them
    steps.py           what step times alone tell: phases, slow steps, the first look

What may not enter: torch, and anything that has to run inside the script's process.
Start reading at `conductor.py`.
"""
