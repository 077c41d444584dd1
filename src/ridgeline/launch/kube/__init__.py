"""Runs on Kubernetes: their manifests, and their life behind an API server.

    manifest.py   everything that one run needs there, as documents in the order of creation
    pod.py        the pod of a node: image, resources, volumes, command
    kinds.py      JobSet, TrainJob with its runtime, RayJob around that pod
    gang.py       all pods or none: Kueue with topology, or the scheduler's own PodGroup
    serving.py    `ridgeline serve`: Deployment, Service, and what scales them
    scaling_policy.py  an autoscaler's manifest, read back as the policy that it is
    api.py        an API server's paths over the `kubernetes` client
    run.py        submit, status, cancel; a submission that crashed is finished or undone
    follow.py     logs of all pods

`manifest.py`, `pod.py`, `kinds.py` and `gang.py` are pure. The `kubernetes` client is imported in
`api.py` alone, and PyYAML in `manifest.py` when text is asked for.
"""
