"""Tests of the sweeps: what is varied, what is shared, what the papers print."""
