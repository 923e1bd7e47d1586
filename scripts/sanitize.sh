#!/bin/sh
# C code under sanitizers, in builds and copies of the tree of their own, so that the usual build stays as it is.
#   sanitize.sh VENV_BIN test [pytest arguments]     ASan and UBSan: the tests that reach C code (SANITIZE_TESTS)
#   sanitize.sh VENV_BIN lab                         ASan and UBSan: ranks of the lab, well and under faults, for LAB_SECONDS (60)
#   sanitize.sh VENV_BIN thread                      TSan: the stress programs of tests/csrc/hostcuda, plans in permuted orders,
#                                                    the interpreter of kernels
#   sanitize.sh VENV_BIN thread-stress               the first of these alone, for `make test`, which has the others elsewhere
#   sanitize.sh VENV_BIN thread-lab                  TSan: ranks of the lab, and ranks that are threads
#   sanitize.sh VENV_BIN fuzz                        ASan and UBSan: every decoder with damaged input, for FUZZ_SECONDS (60) in all
set -eu
bin=$(cd "$1" && pwd)
what=$2
shift 2
root=$PWD

# configure FOLDER OPTION...: psm_rank, libpsm and the emulated CUDA with a sanitizer; then `lab FOLDER` runs ranks of them.
configure()
{
    folder=$1
    shift
    cmake -S . -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DPSMKIT_INPLACE=OFF -DPython_EXECUTABLE="$bin/python" "$@" > /dev/null
}
build()
{
    folder=$1
    shift
    cmake --build "$folder" --parallel 2 --target "$@" > "$folder/build.log" || { cat "$folder/build.log"; exit 1; }
}
lab()
{
    build "$1" psm_rank psm_nccl_rank psm_net hostcuda hostcuda_cudart13 hostcuda_cudart12 hostcuda_cuda hostcuda_nvml
    PSM_DIR=$root/$1/csrc/psm/tree PSM_HOSTCUDA_DIR=$root/$1/csrc/hostcuda/lib PYTHONPATH=$root \
        "$bin/python" scripts/sanitize_lab.py "${LAB_SECONDS:-60}"
}

case $what in
lab)
    configure build/sanitize -DPSMKIT_SANITIZE=ON
    # Leaks of ranks count, too.
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 lab build/sanitize
    exit
    ;;
thread-lab)
    configure build/thread -DPSMKIT_SANITIZE_THREAD=ON
    TSAN_OPTIONS=second_deadlock_stack=1 lab build/thread
    PSM_HOSTCUDA_DIR=$root/build/thread/csrc/hostcuda/lib \
        exec "$bin/python" -m pytest -q -p no:cacheprovider tests/csrc/psm/p2p/test_threads.py
    ;;
thread | thread-stress)
    libraries=$root/build/thread/csrc/hostcuda/lib
    configure build/thread -DPSMKIT_SANITIZE_THREAD=ON
    build build/thread hostcuda_cudart13 hostcuda_cuda
    export LD_LIBRARY_PATH="$libraries" PSM_TOPOLOGY="$root/tests/hostcuda/four.toml" TSAN_OPTIONS=halt_on_error=1
    for source in tests/csrc/hostcuda/*_stress.c; do
        program=build/thread/$(basename "$source" .c)
        gcc -std=gnu11 -O1 -g -fsanitize=thread -Icsrc/cuda "$source" -o "$program" \
            -L"$libraries" -l:libcudart.so.13 -l:libcuda.so.1 -pthread
        for setting in PSM_HOSTCUDA_INLINE=1 PSM_HOSTCUDA_INLINE=0 PSM_HOSTCUDA_HOST_FUNCTIONS=serial; do
            echo "$(basename "$program") with $setting"
            env "$setting" timeout 300 "$program" "${STRESS_ROUNDS:-400}"
        done
    done
    [ "$what" = thread ] || exit 0
    # Plans over real threads, in orders that seeds decide.
    "$bin/python" -m tests.csrc.psm.plan.permuted build/thread/permuted
    for program in build/thread/permuted/traced build/thread/permuted/untraced; do
        PSM_RECORD_DIR=build/thread/permuted timeout 600 "$program" 1 "${PERMUTED_SEEDS:-1000}"
    done
    # Ranks that are threads. TSan wants addresses where it expects them: no randomisation.
    unset LD_LIBRARY_PATH
    PSM_TEST_CXXFLAGS='-g -fsanitize=thread' LD_PRELOAD=$(gcc -print-file-name=libtsan.so) \
        exec setarch -R "$bin/python" -m pytest -q -p no:cacheprovider tests/csrc/nccl/test_interpreter.py
    ;;
test | fuzz) ;;
*)
    echo "sanitize.sh: test, lab, thread, thread-stress, thread-lab or fuzz, not $what" >&2
    exit 2
    ;;
esac

build=build/sanitize
tree=$build/tree

configure $build -DPSMKIT_SANITIZE=ON -DPSMKIT_FUZZ=ON
cmake --build $build --parallel 2 > $build/build.log || { cat $build/build.log; exit 1; }
# The editable install of the usual environment comes before any path: an environment that sees its packages, but not that one.
"$bin/python" -m venv --without-pip $build/venv
"$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$(echo $build/venv/lib/python3*/site-packages)/packages.pth"
python=$root/$build/venv/bin/python
rm -rf $tree
mkdir -p $tree
cp -r psmkit tests benchmarks scripts csrc docs changelog examples ./*.md pyproject.toml CMakeLists.txt $tree/
rm -rf $tree/psmkit/_native/_*.so $tree/psmkit/psm $tree/psmkit/lab/hostcuda
for module in $(find $build -path $tree -prune -o -path $build/venv -prune -o -name '_*.so' -print); do
    cp "$module" $tree/psmkit/_native/
done
cp -r $build/csrc/hostcuda/lib $tree/psmkit/lab/hostcuda
cp -r $build/csrc/psm/tree $tree/psmkit/psm

if [ "$what" = fuzz ]; then
    # Half of the time for the decoders in C, each its share; half for logs and what else Python reads.
    seconds=${FUZZ_SECONDS:-60}
    share=$((seconds / 2 / $(find $build/csrc/fuzz -maxdepth 1 -name 'fuzz_*' -type f | wc -l)))
    for program in "$build"/csrc/fuzz/fuzz_*; do
        [ -f "$program" ] || continue
        echo "$(basename "$program") for $((share + 1)) s"
        UBSAN_OPTIONS=print_stacktrace=1 "$program" "seconds=$((share + 1))" "${FUZZ_SEED:-1}"
    done
    find tests/data/logs -name '*.log' -exec $build/csrc/logscan/logscan_fuzz 1000 {} +
fi

LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
# Python itself keeps memory until it ends: leaks are judged by tests that count.
ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
PYTHONPATH=$root/$tree
export LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS PYTHONPATH
cd $tree
"$python" -c 'import os, psmkit._native._logscan as m; assert m.__file__.startswith(os.getcwd()), m.__file__'
case $what in
test)
    # Those with C code below them: the rules of the analysis have none but the scanner, whose tests are here.
    # tests/psm look at symbols, types and linking of the library as it is delivered.
    [ $# -gt 0 ] || set -- ${SANITIZE_TESTS:-tests/csrc tests/hostcuda tests/conformance tests/proxy tests/transport tests/plan/test_communicator.py \
        tests/lab tests/testing tests/telemetry/test_reader.py tests/telemetry/test_aggregate.py tests/logparse tests/test_mutilated.py tests/test_scenarios.py}
    exec "$python" -m pytest -q -p no:cacheprovider -m 'not slow' "$@"
    ;;
fuzz) exec "$python" scripts/fuzz.py $((seconds / 2)) "${FUZZ_SEED:-1}" ;;
esac
