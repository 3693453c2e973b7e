"""Tests of `fedskew/lab/`."""
