"""Tests of the algorithms, file by file, and the suites that every algorithm goes through."""
