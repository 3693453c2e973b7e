"""Other simulators at the same work, each in a process of its own, which may have another Python."""
