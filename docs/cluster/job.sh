#!/bin/bash
# A sweep as a job of a Ray cluster that is up:  docs/cluster/job.sh http://HEAD:8265
# The job's process runs on the head node. Submitted again, it goes on where it was.
set -euo pipefail

dashboard=${1:?the address of the Ray dashboard, for example http://HEAD:8265}
shared=${SHARED:-/shared} # a folder that all nodes see under this path

ray job submit --address "$dashboard" --runtime-env "$(dirname "$0")/runtime_env.yaml" -- \
    fedskew sweep drift.fedprox_mu --profile paper data.root="$shared/cifar10" \
    --out "$shared/runs/fedprox_mu" --store "$shared/store"
