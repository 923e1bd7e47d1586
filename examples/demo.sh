#!/bin/sh
# What `make demo` runs: two logs, two verdicts.
#   demo.sh PSMKIT LOGS
set -eu
psmkit=$1
logs=$2

show() {
    printf '\n$ psmkit analyze %s\n' "$1"
    # Findings make psmkit exit with 1; only "cannot analyse" (2) and worse ends the demo.
    "$psmkit" analyze "$1" || [ $? -eq 1 ]
}

show "$logs/passsm-8gpu.log"
show "$logs/fault_a2_n4_sigstop_rank1_in_setup"
