"""Tests of `engine/algorithm/`."""
