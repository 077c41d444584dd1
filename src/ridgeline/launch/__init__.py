"""From one machine to a cluster, on engines that exist: torchrun, Slurm, Kubernetes, Ray.

    cluster_file.py   what the place needs, as TOML (image, queue, partition, hosts ...)
    job.py            one recipe on one cluster: how many nodes, which command, which names
    torchrun.py       the exact torchrun line of a node
    hosts.py          nodes over ssh (or this machine): start, watch, merge, end
    slurm.py          the sbatch file, and the queue's answers
    kube/             manifests (JobSet, TrainJob, RayJob), and their life behind an API server
    ray_entry.py      what runs under Ray Train
    pending.py        why a run waits, in one sentence (its table is pending.toml)
    merge.py          logs of all ranks as one, the first error first
    remembered.py     submitted runs on disk, so that a crash of the launcher loses nothing
    price.py          device-hours and money before anything is started
    check/            manifests checked offline, stricter than the server

What may not enter: torch, and the rooms beside this one. What runs on each rank arrives as a
command line. Start reading at `job.py`.
"""
