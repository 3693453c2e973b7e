"""Tests of `engine/studies/`."""
