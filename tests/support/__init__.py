"""What tests share: small data, small runs, small sweeps. No test imports from a test file."""
