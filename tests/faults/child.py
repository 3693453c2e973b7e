"""The command line with a fault in it: ``python -m tests.faults.child LIMIT ADDRESS WORDS...``.

LIMIT: bytes that a file may have, 0 for no limit. ADDRESS: of a Ray cluster whose workers have the fault too, or "-".
"""

from __future__ import annotations

import logging
import resource
import sys

from engine.cli import main as cli
from tests.faults import inject


def main() -> None:
    limit, address, *words = sys.argv[1:]
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    if address != "-":
        import ray

        environment = {"worker_process_setup_hook": inject.install}
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    else:
        inject.install()
    sys.argv = ["fedskew", *words]
    cli.main()


if __name__ == "__main__":
    main()
