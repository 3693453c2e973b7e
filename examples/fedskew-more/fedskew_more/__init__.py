"""A federated method in a package of its own, which fedskew finds by an entry point; see fedclip.py."""
