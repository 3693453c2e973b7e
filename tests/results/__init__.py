"""Tests of `engine/results/`."""
