"""The documentation: pages that are written by hand, and what makes the others (``docs/site``)."""
