"""`ridgeline packed list` and `packed empty`: models that are kept packed for the next start."""

from __future__ import annotations

from ridgeline.cli.show import Json


def packed_list(json: Json = False) -> None:
    """What is kept, where, how large, and when it was last used; the oldest go beyond the bound."""
    from ridgeline.cli.show import show_answer
    from ridgeline.report.views.served import packed_document
    from ridgeline.serve.packed.entries import MOST_BYTES, entries, folder

    found = {
        "folder": str(folder()),
        "most_bytes": MOST_BYTES,
        "bytes": sum(one.bytes for one in entries()),
        "entries": entries(),
    }
    show_answer(found, packed_document(found), json=json)


def packed_empty(json: Json = False) -> None:
    """Remove all of it; models that run keep what they have, the next start packs again."""
    from ridgeline import quantity
    from ridgeline.cli.show import print_json, say
    from ridgeline.serve.packed.entries import empty, folder

    freed = empty()
    if json:
        print_json({"folder": str(folder()), "freed_bytes": freed})
    else:
        say(f"freed {quantity.binary_memory(freed)} in {folder()}")
