"""Stands for a library that would send what it is told to a server."""

import os

mode = os.environ.get("WANDB_MODE", "online")
folder = os.environ.get("WANDB_DIR", "")
