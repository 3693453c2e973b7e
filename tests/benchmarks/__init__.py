"""Tests of the benchmarks: fair arithmetic, honest pages."""
