"""An API server and one of its namespaces, over the `kubernetes` client.

Objects are plain mappings: their kinds come from custom resources, which the client has no classes
for. Its DynamicClient brings kubeconfig, TLS, queries and errors. It is not let discover kinds: the
few that are asked for are known, discovery would be several requests a question, and it keeps what
it found in a file of /tmp that others may write.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.records.launched_run import ObjectName

_TIMEOUT_SECONDS = 30.0
_PATCH = "application/merge-patch+json"
_REFUSED = (400, 403, 409, 422)


class ApiServer:
    """One API server, one namespace. Made by `connect`."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object; one of that name that exists already is an error."""
        name = name_of(document)
        path = self._path(name.api_version, name.kind)
        return self._object("post", path, f"{name.kind} {name.name}", body=document) or {}

    def get(self, name: ObjectName) -> dict[str, Any] | None:
        """The object, or None."""
        path = self._path(name.api_version, name.kind, name.name)
        return self._object("get", path, f"{name.kind} {name.name}", may_be_missing=True)

    def find(self, api_version: str, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects whose labels match; none where the server does not know the kind."""
        found = self._object(
            "get",
            self._path(api_version, kind),
            kind,
            may_be_missing=True,
            label_selector=selector or None,
        )
        items: list[dict[str, Any]] = (found or {}).get("items", [])
        return items

    def patch(self, name: ObjectName, change: Mapping[str, Any]) -> None:
        """Change some fields of an object."""
        path = self._path(name.api_version, name.kind, name.name)
        what = f"{name.kind} {name.name}"
        self._object("patch", path, what, body=change, content_type=_PATCH)

    def delete(self, name: ObjectName) -> bool:
        """Take an object away, and what it owns; False where it was not there."""
        found = self._object(
            "delete",
            self._path(name.api_version, name.kind, name.name),
            f"{name.kind} {name.name}",
            may_be_missing=True,
            propagation_policy="Background",
        )
        return found is not None

    def log(self, pod: str, since: str = "") -> str:
        """What a pod has said, each line with its time; empty before it has begun."""
        query = [("timestamps", "true")] + ([("sinceTime", since)] if since else [])
        status, body = self._ask("get", self._path("v1", "Pod", pod) + "/log", query_params=query)
        return body.decode(errors="replace") if status == 200 else ""

    def _path(self, api_version: str, kind: str, name: str = "") -> str:
        root = "/apis" if "/" in api_version else "/api"
        path = f"{root}/{api_version}/namespaces/{self.namespace}/{kind.lower()}s"
        return f"{path}/{name}" if name else path

    def _object(
        self, method: str, path: str, what: str, *, may_be_missing: bool = False, **options: Any
    ) -> dict[str, Any] | None:
        status, body = self._ask(method, path, **options)
        if status == 404 and may_be_missing:
            return None
        try:
            content = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        except msgspec.MsgspecError:
            raise RidgelineError(f"{what}: the API server answered {status}, no JSON") from None
        if status < 300:
            return content
        told = " ".join(str(content.get("message", "")).split())
        if status in _REFUSED:
            raise InputError(f"{what}: the API server refuses it: {told or status}")
        raise RidgelineError(f"{what}: the API server answered {status}: {told}")

    def _ask(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        from kubernetes.dynamic.exceptions import DynamicApiError
        from urllib3.exceptions import HTTPError

        try:
            answer = self._client.request(
                method, path, serialize=False, _request_timeout=_TIMEOUT_SECONDS, **options
            )
        except DynamicApiError as error:
            body = error.body or b""
            return int(error.status), body.encode() if isinstance(body, str) else body
        except HTTPError as error:
            host = self._client.configuration.host
            raise RidgelineError(f"the API server {host} does not answer: {error}") from None
        return int(answer.status), bytes(answer.data or b"")


def name_of(document: Mapping[str, Any]) -> ObjectName:
    """What an object is called."""
    return ObjectName(
        api_version=document["apiVersion"],
        kind=document["kind"],
        name=document["metadata"]["name"],
    )


def connect(namespace: str, context: str = "") -> ApiServer:
    """Connect to the server that kubeconfig names.

    Raises:
        MissingExtra: The client is not installed.
        InputError: There is no kubeconfig, or it lacks the context.
    """
    try:
        from kubernetes import config, dynamic
    except ImportError:
        raise MissingExtra("kubernetes", "kubernetes") from None
    try:
        client = config.new_client_from_config(context=context or None)
    except Exception as error:  # a kubeconfig can be wrong in any way
        told = " ".join(str(error).split())
        raise InputError(
            f"kubeconfig: {told}; set KUBECONFIG or kubernetes.context, or look at the manifest"
            " with --dry-run"
        ) from None
    undiscovered = dynamic.DynamicClient(client, discoverer=lambda _client, _cache_file: None)
    return ApiServer(undiscovered, namespace)
