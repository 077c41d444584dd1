"""The API server's rules for names, labels and keys (apimachinery `util/validation`).

RFC 1123 labels and subdomains, qualified names of labels and resources. Each function returns what
is wrong, or the empty text.
"""

from __future__ import annotations

import re

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_PORT_NAME = re.compile(r"[-a-z0-9]+")


def _matches(value: str, pattern: re.Pattern[str], limit: int, what: str) -> str:
    if len(value.encode()) > limit:
        return f"must be no more than {limit} characters"
    return "" if pattern.fullmatch(value) else what


def dns_label(value: str) -> str:
    """RFC 1123 label: containers, volumes, Services, StatefulSets."""
    return _matches(
        value,
        _LABEL,
        LABEL_LENGTH,
        "must be a lowercase RFC 1123 label: letters, digits and '-', ending in neither",
    )


def dns_subdomain(value: str) -> str:
    """RFC 1123 subdomain: the name of most objects."""
    return _matches(
        value,
        _SUBDOMAIN,
        SUBDOMAIN_LENGTH,
        "must be a lowercase RFC 1123 subdomain: letters, digits, '-' and '.', "
        "beginning and ending with a letter or digit",
    )


def qualified_name(value: str) -> str:
    """A label key, an annotation key or a resource name: `name` or `domain/name`."""
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        return "must have at most one '/'"
    if slash and (not prefix or dns_subdomain(prefix)):
        return "the part before '/' must be a lowercase RFC 1123 subdomain"
    if not name:
        return "the name must not be empty"
    what = "must consist of letters, digits, '-', '_' or '.', beginning and ending with the former"
    return _matches(name, _QUALIFIED, LABEL_LENGTH, what)


def label_value(value: str) -> str:
    """The value of a label; may be empty."""
    what = "must consist of letters, digits, '-', '_' or '.', beginning and ending with the former"
    return _matches(value, _LABEL_VALUE, LABEL_LENGTH, what)


def config_key(value: str) -> str:
    """A key of a ConfigMap or a Secret."""
    if value in (".", "..") or value.startswith(".."):
        return "must not be '.' or begin with '..'"
    return _matches(value, _CONFIG_KEY, SUBDOMAIN_LENGTH, "must consist of letters, digits, -._")


def env_name(value: str) -> str:
    """The name of an environment variable: printable ASCII without '='."""
    return "" if _ENV_NAME.fullmatch(value) else "must be printable ASCII without '='"


def port_name(value: str) -> str:
    """IANA service name: at most 15 of a-z, 0-9 and '-', with a letter, no '--', no '-' outside."""
    if not _PORT_NAME.fullmatch(value):
        return "must contain only a-z, 0-9 and '-'"
    if len(value) > 15:
        return "must be no more than 15 characters"
    if not re.search("[a-z]", value):
        return "must contain at least one letter"
    if "--" in value or value[0] == "-" or value[-1] == "-":
        return "must not contain '--', nor begin or end with '-'"
    return ""


def path_segment(value: str) -> str:
    """What RBAC objects may be called: anything that fits into one part of a URL."""
    if value in (".", ".."):
        return f"may not be '{value}'"
    return "may not contain '/' or '%'" if "/" in value or "%" in value else ""
