"""What every room above stands on and what knows nothing of federated learning: errors, files, tables, YAML, devices.

It offers errors written for users, whole files or none, readers that run no code, names for parts (the registry) and
what this machine is. Read ``errors.py`` first: each error is one sentence with field, value, rule and repair.
"""
