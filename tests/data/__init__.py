"""Tests of `engine/data/`."""
