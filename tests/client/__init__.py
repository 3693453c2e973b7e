"""Tests of `engine/client/`."""
