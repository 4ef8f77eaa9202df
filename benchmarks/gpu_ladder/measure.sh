#!/bin/bash
# Checks and times everything on the device; compiled kernels are in build/ (build.py). Results go to the folder $OUT. An argument
# names a part: ladder, checks, plain, switches.
set -o pipefail
cd "$(dirname "$0")"
export PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv,noheader
python3 measure.py "${OUT:-.}" "${1:-all}" 2>&1 | tee "${OUT:-.}/log"
nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader
