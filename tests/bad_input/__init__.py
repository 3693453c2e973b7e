"""What users type and have in their folders that cannot be run: a table for each kind of input."""
