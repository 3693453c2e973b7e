#!/bin/sh
# Everything that benchmarks/gpu_quarter_hour.py has to tell of a card that is at hand for a quarter of an hour:
#
#     benchmarks/gpu_quarter_hour.sh [MINUTES] [--cifar10 FOLDER]    # 9 minutes; wheels of what is missing lie in .whl
#     benchmarks/gpu_quarter_hour.sh --rehearse                      # on the processor, in small
#
# gpu.json goes to $OUT. The next call goes on with what runs/quarter keeps beside it: logs, the run of Table 1, and what
# the compiler has made; on another machine once $OUT's kept.tgz and compiled.tgz are unpacked there.
set -eu
: "${OUT:=$(mktemp -d)}"
TMPDIR=$(mktemp -d)
PYTHON=python3
KEPT=$PWD/runs/quarter
if [ "${1:-}" = --rehearse ]; then KEPT=$TMPDIR/kept OMP_NUM_THREADS=1; export OMP_NUM_THREADS; fi
export TMPDIR PYTHONUNBUFFERED=1 TORCHINDUCTOR_COMPILE_THREADS=4 TORCHINDUCTOR_CACHE_DIR="$KEPT/compiled"
export PYTHONPATH="$TMPDIR/site:.${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$KEPT/compiled" "$OUT"
if [ -f "$KEPT/gpu.json" ]; then cp "$KEPT/gpu.json" "$OUT/"; fi

ended() {
    if [ -f "$OUT/gpu.json" ]; then cp "$OUT/gpu.json" "$KEPT/"; fi
    tar czf "$OUT/kept.tgz" --exclude=./compiled -C "$KEPT" .
    tar czf "$OUT/compiled.tgz" -C "$KEPT" compiled
    rm -rf "$TMPDIR"
    echo "results in $OUT"
}
trap ended EXIT

if [ -x .venv/bin/python ]; then
    PYTHON=.venv/bin/python
elif [ -d .whl ]; then
    $PYTHON -m pip install -q --no-index --no-deps --no-compile --target "$TMPDIR/site" .whl/*.whl
fi
$PYTHON -m benchmarks.gpu_quarter_hour "$@" --results "$OUT" --kept "$KEPT"
