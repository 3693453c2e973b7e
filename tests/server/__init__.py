"""Tests of `engine/server/`."""
