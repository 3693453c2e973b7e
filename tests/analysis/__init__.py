"""Tests of `engine/analysis/`."""
