"""Tests of `engine/sweeps/`."""
