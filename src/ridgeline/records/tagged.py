"""What all documents of records have in common: `record` names the kind, and no key is unknown."""

from __future__ import annotations

import msgspec


class TaggedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record"):
    """A record that is a document by itself; its class says the `tag` that `record` has."""
