"""The file by which `ridgeline train` asks the ranks of a run to save and end. No torch."""

FILE = "stop"
TERMINATED = "SIGTERM"
INTERRUPTED = "Ctrl-C"
"""What the file says: why."""
