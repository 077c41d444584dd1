"""Pages that are no explorers: one file each, found by being there (see `page.py`)."""
