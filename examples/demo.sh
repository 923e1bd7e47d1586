#!/bin/sh
# The first part of `make demo`: a hang that the log proves, and the log of an 8-GPU hang that prints too little to prove one.
#   demo.sh PSMKIT LOGS
set -eu
psmkit=$1
logs=$2

show() {
    printf '\n$ psmkit analyze %s\n' "$1"
    # Exit status 1 means findings. A higher one ends the demo.
    "$psmkit" analyze "$1" || [ $? -eq 1 ]
}

show "$logs/fault_a2_n4_sigstop_rank1_in_setup"
show "$logs/passsm-8gpu.log"
