"""Tests of `engine/worker/`."""
