"""A trace as something to look at: a timeline, a flame graph, an annotated trace for Perfetto."""
