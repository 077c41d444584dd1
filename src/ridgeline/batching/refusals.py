"""Why a scheduler does not take a request."""

from __future__ import annotations


class Refusal(ValueError):
    """The request was not taken; the message says why and what to change."""


class QueueFull(Refusal):
    """Too many wait already; the same request may be taken later."""


class TooLong(Refusal):
    """The request can never fit."""
