"""Tests of `fedskew/cli/`."""
