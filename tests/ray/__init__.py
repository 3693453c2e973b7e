"""Tests on a real Ray: one shared session."""
