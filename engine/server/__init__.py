"""A round: cohort, broadcast, blocks, sums, aggregation; and what a server asks of all clients outside rounds.

It offers what computes and nothing that is kept: no file is written here, but rows are added to tables.
Read ``round.py`` first; ``evaluation.py`` measures models, ``client_map.py`` reaches every client.
"""
