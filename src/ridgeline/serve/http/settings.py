"""What an operator sets about the API, without the API: the command reads it first."""

from __future__ import annotations

from typing import Literal

import msgspec


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the server; field for field flags of `ridgeline serve`."""

    model_name: str
    other_names: tuple[str, ...] = ()
    """Further names that requests may call the model by; replies say `model_name`."""
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    """Keys that clients have to send; empty: everyone may ask."""
    max_body_bytes: int = 8 * 2**20
    request_timeout_seconds: float | None = None
    shutdown_timeout_seconds: float = 30.0
    """The time for open requests after SIGTERM."""
    chat_template: str | None = None
    """The template of conversations, instead of the tokenizer's."""
    reasoning_parser: str = "auto"
    """The family of models whose thoughts are told apart."""
    tool_call_parser: str = "auto"
    """The family of models whose way of writing tool calls is read."""
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """What becomes of a request with a field that nobody here reads."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages that browsers let ask; "*": all."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts that images may be fetched from, over https."""
    tls: tuple[str, str] | None = None
    """The files of a certificate and its key; None: plain HTTP."""
    root_path: str = ""
    """The prefix of paths that a proxy in front takes off."""
    defaults: dict[str, float | int] = {}
    """What requests get that leave a parameter of sampling out."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may call the model by."""
        return (self.model_name, *self.other_names)
