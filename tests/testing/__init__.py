"""Tests of `fedskew/testing/`."""
