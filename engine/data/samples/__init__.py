"""The samples themselves: a data set in arrays, who has which of them, and batches of a client's rows on a device.

Sources make a :class:`~engine.data.samples.dataset.Dataset`, partitions an
:class:`~engine.data.samples.assignment.Assignment`. Read ``dataset.py`` first.
"""
