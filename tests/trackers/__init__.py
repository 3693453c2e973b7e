"""Tests of `fedskew/trackers/`."""
