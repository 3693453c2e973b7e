"""Faults that are made on purpose: files of any content, and more."""
