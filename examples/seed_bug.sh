#!/bin/sh
# The last part of `make demo`: examples/seed_bug.c on emulated CUDA, in three cases, and psmkit's verdict on each.
#   seed_bug.sh VENV_BIN
set -eu
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
libraries=$("$bin/python" -c 'from psmkit.lab.cuda import folder; print(folder())')
headers=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13/include
gcc -rdynamic -isystem "$headers" examples/seed_bug.c -o "$work/seed_bug" "$libraries/libcudart.so.13" -Wl,-rpath-link,"$libraries" -lpthread

show() {
    mkdir "$work/$1-$2"
    echo "\$ seed_bug $1 $2"
    set +e
    LD_LIBRARY_PATH=$libraries NCCL_DEBUG=INFO PSM_HOSTCUDA_SANITIZE=warn PSM_STALL_REPORT=1 PSM_RECORD_KEEP=1 \
        PSM_RECORD_DIR="$work/$1-$2" timeout -s KILL 4 "$work/seed_bug" "$1" "$2" > "$work/$1-$2/job.log" 2>&1
    status=$?
    set -e
    grep -E '^(passed|failed|proxy:)' "$work/$1-$2/job.log" || echo "(still running after 4 s: killed, status $status)"
    "$bin/psmkit" analyze "$work/$1-$2" | awk 'NR == 1 || /^  (who|proof):/'
    grep -oE '(sanitizer report|hostcuda: stalled).*' "$work/$1-$2/job.log" | fold -s -w 140 || true
    echo
}
show zero nonblocking
show zero blocking
show foreign blocking
