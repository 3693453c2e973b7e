"""The store of finished stages, shared by many processes on one or many nodes through nothing but a file system.

It offers :class:`StageStore`: entries under a key and a round, leases on keys, and a limit to its size. Read
``stage_store.py`` first, for what lies where and what is relied on.
"""

from engine.record.store.leases import Holder, Lease, Watch
from engine.record.store.stage_store import StageStore, check_store

__all__ = ["Holder", "Lease", "StageStore", "Watch", "check_store"]
