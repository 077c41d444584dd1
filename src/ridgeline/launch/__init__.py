"""From one machine to a cluster, on engines that exist: torchrun, Slurm, Kubernetes, Ray.

    cluster_file.py   what the place needs, as TOML (image, queue, partition, hosts ...)
    job.py            one recipe on one cluster: how many nodes, which torchrun line, which names
    price.py          device-hours and money before anything is started
    places/           one file for each place: this machine and ssh, Slurm, Ray, Kubernetes
    kube/             manifests, and the API server that takes them
    ray_entry.py      what runs under Ray Train
    remembered.py     submitted runs on disk, so that a crash of the launcher loses nothing
    pending.py        why a run waits, in one sentence (its table is pending.toml)
    merge.py          logs of all ranks as one, the first error first
    check/            manifests checked offline, stricter than the server

What may not enter: torch, and the rooms beside this one. What runs on each rank arrives as a
command line. Start reading at `job.py`, then `places/__init__.py`.
"""
