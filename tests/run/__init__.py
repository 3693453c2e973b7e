"""Tests of `engine/run/`."""
