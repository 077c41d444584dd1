"""What a cluster of GPUs does with its jobs, and what it should: queues, placement, findings.

Jobs and nodes are read from files, a simulator plays the queue under one policy or several, and
every policy is one file. Arrays and plain values only: no torch, no network, no printing, and
nothing that talks to a cluster (that is `launch/`). Start reading at `jobs.py`, then `machine.py`,
then `policies/`.
"""
