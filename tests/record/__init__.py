"""Tests of `engine/record/`."""
