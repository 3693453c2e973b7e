"""Tests of `engine/experiment/`."""
