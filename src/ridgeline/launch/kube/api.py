"""An API server: paths and JSON over the `kubernetes` client, which brings kubeconfig and TLS.

Objects are plain mappings: their kinds come from custom resources, which the client has no classes
for. https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.records.launched_run import ObjectName

_TIMEOUT_SECONDS = 30.0
_PATCH = "application/merge-patch+json"


class Server:
    """One API server, one namespace. Made by `connect`."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object; one of that name that exists already is an error."""
        name = name_of(document)
        answer = self._ask("POST", self._path(name.api_version, name.kind), body=document)
        return self._json(answer, f"{name.kind} {name.name}")

    def get(self, name: ObjectName) -> dict[str, Any] | None:
        """The object, or None."""
        status, body = self._ask("GET", self._path(name.api_version, name.kind, name.name))
        return None if status == 404 else self._json((status, body), f"{name.kind} {name.name}")

    def find(self, api_version: str, kind: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """The objects that a selector finds; none where the server does not know the kind."""
        status, body = self._ask("GET", self._path(api_version, kind), query=query)
        if status == 404:
            return []
        items: list[dict[str, Any]] = self._json((status, body), kind).get("items", [])
        return items

    def patch(self, name: ObjectName, change: Mapping[str, Any]) -> None:
        """Change some fields."""
        path = self._path(name.api_version, name.kind, name.name)
        self._json(self._ask("PATCH", path, body=change), f"{name.kind} {name.name}")

    def delete(self, name: ObjectName) -> bool:
        """Take an object away, and what it owns; False where it was not there."""
        path = self._path(name.api_version, name.kind, name.name)
        answer = self._ask("DELETE", path, query={"propagationPolicy": "Background"})
        if answer[0] == 404:
            return False
        self._json(answer, f"{name.kind} {name.name}")
        return True

    def log(self, pod: str, since: str = "") -> str:
        """What a pod has said, each line with its time; empty before it has begun."""
        query = {"timestamps": "true"} | ({"sinceTime": since} if since else {})
        status, body = self._ask("GET", self._path("v1", "Pod", pod) + "/log", query=query)
        return body.decode(errors="replace") if status == 200 else ""

    def _path(self, api_version: str, kind: str, name: str = "") -> str:
        root = "/apis" if "/" in api_version else "/api"
        path = f"{root}/{api_version}/namespaces/{self.namespace}/{kind.lower()}s"
        return f"{path}/{name}" if name else path

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> tuple[int, bytes]:
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*"}
        headers["Content-Type"] = _PATCH if method == "PATCH" else "application/json"
        verb, url, headers, body, _ = self._client.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        if query:
            url = f"{url}?{urlencode(query)}"
        try:
            answer = self._client.call_api(
                verb, url, headers, body=body, _request_timeout=_TIMEOUT_SECONDS
            )
        except HTTPError as error:
            host = self._client.configuration.host
            raise RidgelineError(f"the API server {host} does not answer: {error}") from None
        return int(answer.status), bytes(answer.read() or b"")

    def _json(self, answer: tuple[int, bytes], what: str) -> dict[str, Any]:
        status, body = answer
        try:
            content = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        except msgspec.MsgspecError:
            raise RidgelineError(f"{what}: the API server answered {status}, no JSON") from None
        if status < 300:
            return content
        told = " ".join(str(content.get("message", "")).split())
        if status in (400, 403, 409, 422):
            raise InputError(f"{what}: the API server refuses it: {told or status}")
        raise RidgelineError(f"{what}: the API server answered {status}: {told}")


def name_of(document: Mapping[str, Any]) -> ObjectName:
    """What an object is called."""
    return ObjectName(
        api_version=document["apiVersion"],
        kind=document["kind"],
        name=document["metadata"]["name"],
    )


def connect(namespace: str, context: str = "") -> Server:
    """The server that kubeconfig names.

    Raises:
        MissingExtra: The client is not installed.
        InputError: There is no kubeconfig, or it lacks the context.
    """
    try:
        from kubernetes import config
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
    return Server(client, namespace)
