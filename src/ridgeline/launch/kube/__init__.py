"""What Kubernetes is given: the manifests of runs and of servers, and the API server's paths.

    manifest.py   everything that one run needs there: JobSet, TrainJob or RayJob, what it reads
    pod.py        the pod of a node: image, resources, volumes, command
    serving.py    `ridgeline serve`: Deployment, Service, and what scales them
    scaling_policy.py  an autoscaler's manifest, read back as the policy that it is
    api.py        an API server over the `kubernetes` client

All but `api.py` is pure. The `kubernetes` client is imported there alone, and PyYAML in
`manifest.py` when text is asked for. A run's life on the server is `places/kubernetes.py`.
"""
