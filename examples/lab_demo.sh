#!/bin/sh
# The second half of `make demo`: 4 ranks on emulated CUDA that send each other data, and 4 with the mistake of the first log: the stream of
# a proxy is overwritten by what the peer sent, and its copies wait behind the application.
#   lab_demo.sh PSMKIT
set -eu
psmkit=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# 1 says that something was found; only what is worse ends the demo.
found() {
    printf '\n$ psmkit %s\n' "$*"
    "$psmkit" "$@" || [ $? -eq 1 ]
}

found lab run --ranks 4 --pattern alltoall --size 4M --out "$out/good"
found lab run --ranks 4 --pattern alltoall --size 1M --variant whole-struct-zero --app-stream legacy --deadline 5 --out "$out/hang"
found analyze "$out/hang"
