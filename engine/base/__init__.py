"""The ground of all rooms, which knows nothing of federated learning: errors, files, tables, YAML, names, devices.

It offers errors that are written for users, files that are whole or absent, readers that run no code, choices by name
(the registry) and facts about this machine. Read ``errors.py`` first, then ``registry.py``.
"""
