"""Tests of `engine/models/`."""
