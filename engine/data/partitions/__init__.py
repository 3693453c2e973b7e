"""Rules by which samples are divided among clients (``partition.name``).

They offer one interface, :class:`~engine.data.partitions.partition.Partition`: ``assign`` divides the training samples,
``share_tests`` the test samples after them. A partition has its own seed, apart from the seed of the run, so that
methods and seeds share it. Every training sample goes to exactly one client. Only ``cbfl_code``, ``class_sets``,
``class_matrix``, ``table``, and ``shards`` and ``owner_groups`` where they are asked to, drop some, and say which;
``replacement``, and ``table`` where it is allowed to, give a sample to any number of clients. Which of them is which
partition of other libraries: docs/partitions.md. Read ``partition.py`` first, then ``dirichlet.py``.
"""
