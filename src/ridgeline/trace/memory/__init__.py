"""Memory over time, from the allocations in a trace or from a memory snapshot of torch."""
