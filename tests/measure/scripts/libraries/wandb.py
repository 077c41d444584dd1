"""Stands for a library that would send what it is told to a server."""

import os

mode = os.environ.get("WANDB_MODE", "online")
folder = os.environ.get("WANDB_DIR", "")


def init(project=None, mode=None):
    """What the run was told in the end."""
    return mode or os.environ["WANDB_MODE"]
