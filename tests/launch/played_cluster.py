"""A small API server with a played kubelet: enough of Kubernetes to launch a run on.

Objects are kept by path. Tests play the cluster: admit the run, bind pods, let them speak, kill
one. Answers have the shapes of the real server (Status on errors, lists with `items`).
"""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlparse


class PlayedCluster:
    """Start it with `with`; `url` is where it listens."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.refuse: str = ""
        """Kind whose creation is answered with 500, as a server does that falls over."""
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def kinds(self) -> list[str]:
        return sorted(one["kind"] for one in self.objects.values())

    def kubeconfig(self) -> str:
        """For `KUBECONFIG`."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "played",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "played", "context": {"cluster": "c", "user": "u"}}],
            }
        )

    def put(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        metadata = document.setdefault("metadata", {})
        metadata.setdefault("uid", str(uuid.uuid4()))
        self.objects[f"{path}/{metadata['name']}"] = document
        return document

    def pod(self, name: str, run: str, index: int, status: dict[str, Any]) -> None:
        """What the Job controller and the kubelet would make."""
        labels = {
            "ridgeline.dev/run": run,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        self.put(
            "/api/v1/namespaces/default/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "status": status,
            },
        )

    def say(self, pod: str, stamp: str, text: str) -> None:
        self.logs.setdefault(pod, []).append((stamp, text))

    def drop_pods(self) -> None:
        for path in [path for path in self.objects if "/pods/" in path]:
            del self.objects[path]


class _Handler(BaseHTTPRequestHandler):
    cluster: PlayedCluster

    def do_GET(self) -> None:
        url = urlparse(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.endswith("/log"):
            pod = url.path.split("/")[-2]
            since = query.get("sinceTime", "")
            lines = [
                f"{stamp} {text}\n"
                for stamp, text in self.cluster.logs.get(pod, [])
                if stamp[:19] >= since[:19]
            ]
            self._send(200, "".join(lines).encode(), "text/plain")
        elif url.path in self.cluster.objects:
            self._json(200, self.cluster.objects[url.path])
        elif url.path.rpartition("/")[2] in _COLLECTIONS:
            wanted = dict(
                one.split("=") for one in query.get("labelSelector", "").split(",") if one
            )
            items = [
                one
                for path, one in sorted(self.cluster.objects.items())
                if path.rpartition("/")[0] == url.path
                and wanted.items() <= one["metadata"].get("labels", {}).items()
            ]
            self._json(200, {"kind": "List", "items": items})
        else:
            self._refuse(404, "not found")

    def do_POST(self) -> None:
        document = self._body()
        path = f"{self.path}/{document['metadata']['name']}"
        if document["kind"] == self.cluster.refuse:
            self._refuse(500, "etcdserver: request timed out")
        elif path in self.cluster.objects:
            self._refuse(409, f"{document['kind']} already exists")
        else:
            self._json(201, self.cluster.put(self.path, document))

    def do_PATCH(self) -> None:
        found = self.cluster.objects[self.path]
        found["metadata"].update(self._body()["metadata"])
        self._json(200, found)

    def do_DELETE(self) -> None:
        path = urlparse(self.path).path
        found = self.cluster.objects.pop(path, None)
        if found is None:
            self._refuse(404, "not found")
            return
        uid = found["metadata"]["uid"]
        for other, one in list(self.cluster.objects.items()):
            owners = one["metadata"].get("ownerReferences", ())
            if any(owner.get("uid") == uid for owner in owners):
                del self.cluster.objects[other]
        self._json(200, {"kind": "Status", "status": "Success"})

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _refuse(self, code: int, message: str) -> None:
        self._json(code, {"kind": "Status", "code": code, "message": message})

    def _json(self, code: int, content: Any) -> None:
        self._send(code, json.dumps(content).encode(), "application/json")

    def _send(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


_COLLECTIONS = {"pods", "events", "workloads", "jobsets", "configmaps", "podgroups"}
