"""The command line, one file for each group of commands.

It offers the entry point ``fedskew``; nothing imports it. Read ``main.py`` first.
"""
