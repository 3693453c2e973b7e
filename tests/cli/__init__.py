"""Tests of `engine/cli/`."""
