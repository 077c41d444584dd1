"""Launches of Ridgeline's own kernels, which `ridgeline kernels check NAME` runs."""
