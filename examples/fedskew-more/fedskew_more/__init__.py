"""Eight federated methods for fedskew, one file each, that its engine knows nothing of.

fedskew finds them by the entry points of this distribution (group ``fedskew.plugins``). ``METHODS`` is the same list
for whoever imports the package: name -> class. Read ``fedlc.py`` first (another loss), then ``feddyn.py`` (client
state) and ``fedbn.py`` (parameters that stay with their client).
"""

from fedskew import Algorithm
from fedskew_more.fedbn import FedBN
from fedskew_more.feddyn import FedDyn
from fedskew_more.fedlc import FedLC
from fedskew_more.fedntd import FedNTD
from fedskew_more.fedopt import FedAdam, FedYogi
from fedskew_more.fedproto import FedProto
from fedskew_more.fedrod import FedROD
from fedskew_more.fedrs import FedRS

METHODS: dict[str, type[Algorithm]] = {
    "feddyn": FedDyn,
    "fedntd": FedNTD,
    "fedlc": FedLC,
    "fedrs": FedRS,
    "fedrod": FedROD,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedbn": FedBN,
    "fedproto": FedProto,
}
