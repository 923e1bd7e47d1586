#!/bin/sh
# The second part of `make demo`, on emulated CUDA. First 4 ranks send each other data. Then 4 ranks make the mistake of the 8-GPU log:
# the proxy copies on the stream handle that the peer sent, and these copies wait for the application.
#   lab_demo.sh PSMKIT
set -eu
psmkit=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Exit status 1 means findings. A higher one ends the demo.
found() {
    printf '\n$ psmkit %s\n' "$*"
    "$psmkit" "$@" || [ $? -eq 1 ]
}

found lab run --ranks 4 --pattern alltoall --size 4M --out "$out/good"
found lab run --ranks 4 --pattern alltoall --size 1M --variant whole-struct-zero --app-stream legacy --deadline 5 --out "$out/hang"
found analyze "$out/hang"
