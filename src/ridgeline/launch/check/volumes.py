"""Volumes of pods (`ValidateVolumes` of Kubernetes 1.36)."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.launch.check import names
from ridgeline.launch.check.containers import check_local_path
from ridgeline.launch.check.metadata import Object, check_choice, check_name, entries
from ridgeline.launch.check.quantities import parse_quantity
from ridgeline.launch.check.verdict import Problems

_HOST_PATHS = (
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
_REQUIRED = {
    "secret": ("secretName",),
    "configMap": ("name",),
    "persistentVolumeClaim": ("claimName",),
    "hostPath": ("path",),
    "nfs": ("server", "path"),
    "csi": ("driver",),
    "iscsi": ("targetPortal", "iqn"),
}
"""Kind of volume → the fields without which it names nothing."""

_PROJECTED = ("secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle")


def check_volumes(volumes: list[Object], path: str, problems: Problems) -> None:
    """Names and sources of a pod's volumes."""
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        at, name = f"{path}[{index}]", volume.get("name")
        check_name(name, names.dns_label, f"{at}.name", problems)
        if name and name in seen:
            problems.duplicate(f"{at}.name", name)
        seen.add(name or "")
        # A volume without any source is an emptyDir.
        sources = [key for key in volume if isinstance(volume[key], Mapping)]
        for key in sources[1:]:
            problems.forbidden(f"{at}.{key}", "may not specify more than 1 volume type")
        for key in sources[:1]:
            _check_source(volume[key], key, f"{at}.{key}", problems)


def _check_source(source: Object, kind: str, path: str, problems: Problems) -> None:
    for key in _REQUIRED.get(kind, ()):
        if not source.get(key):
            problems.required(f"{path}.{key}")
    if kind == "hostPath":
        if ".." in (source.get("path") or "").split("/"):
            problems.invalid(f"{path}.path", source["path"], "must not contain '..'")
        check_choice(source.get("type"), _HOST_PATHS, f"{path}.type", problems)
    if kind == "emptyDir":
        size = parse_quantity(source.get("sizeLimit"))
        if size is not None and size < 0:
            problems.forbidden(f"{path}.sizeLimit", "sizeLimit must not be negative")
    if kind == "projected":
        for index, projection in enumerate(entries(source, "sources")):
            at = f"{path}.sources[{index}]"
            for key in _PROJECTED:
                if projection.get(key) is not None:
                    _check_items(projection[key], f"{at}.{key}", problems)
            token = projection.get("serviceAccountToken")
            if token is not None and not token.get("path"):
                problems.required(f"{at}.serviceAccountToken.path")
    if kind in ("secret", "configMap"):
        _check_items(source, path, problems)
    mode = source.get("defaultMode")
    if mode is not None and not 0 <= mode <= 0o777:
        problems.invalid(f"{path}.defaultMode", mode, "must be a number between 0 and 0777 (octal)")


def _check_items(source: Object, path: str, problems: Problems) -> None:
    for index, item in enumerate(entries(source, "items")):
        at = f"{path}.items[{index}]"
        if "key" in item and not item["key"]:
            problems.required(f"{at}.key")
        if not item.get("path"):
            problems.required(f"{at}.path")
        check_local_path(item.get("path"), f"{at}.path", problems)
