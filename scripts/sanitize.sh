#!/bin/sh
# The scanner under AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the tree so that the usual build stays as it is.
#   sanitize.sh VENV_BIN test [pytest arguments]     the tests that reach the scanner
#   sanitize.sh VENV_BIN fuzz                        mutated logs for FUZZ_SECONDS (60)
# The emulated CUDA under ThreadSanitizer:
#   sanitize.sh VENV_BIN thread                      the stress programs of tests/csrc/hostcuda
set -eu
bin=$(cd "$1" && pwd)
what=$2
shift 2

if [ "$what" = thread ]; then
    build=$PWD/build/thread
    libraries=$build/csrc/hostcuda/lib
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Debug -DPSMKIT_SANITIZE_THREAD=ON -DPSMKIT_INPLACE=OFF \
        -DPython_EXECUTABLE="$bin/python" > /dev/null
    cmake --build "$build" --parallel 2 --target hostcuda_cudart13 hostcuda_cuda > /dev/null
    export LD_LIBRARY_PATH="$libraries" PSM_TOPOLOGY="$PWD/tests/hostcuda/four.toml" TSAN_OPTIONS=halt_on_error=1
    for source in tests/csrc/hostcuda/*_stress.c; do
        program=$build/$(basename "$source" .c)
        gcc -std=gnu11 -O1 -g -fsanitize=thread -Icsrc/cuda "$source" -o "$program" \
            -L"$libraries" -l:libcudart.so.13 -l:libcuda.so.1 -pthread
        for setting in PSM_HOSTCUDA_INLINE=1 PSM_HOSTCUDA_INLINE=0 PSM_HOSTCUDA_HOST_FUNCTIONS=serial; do
            echo "$(basename "$program") with $setting"
            env "$setting" timeout 300 "$program" "${STRESS_ROUNDS:-400}"
        done
    done
    exit
fi

build=build/sanitize
tree=$build/tree

cmake -S . -B $build -DCMAKE_BUILD_TYPE=Debug -DPSMKIT_SANITIZE=ON -DPython_EXECUTABLE="$bin/python" > /dev/null
cmake --build $build --parallel 2 $SANITIZE_TARGETS
# The editable install of the usual environment comes before any path: an environment that sees its packages, but not that one.
"$bin/python" -m venv --without-pip $build/venv
"$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$(echo $build/venv/lib/python3*/site-packages)/packages.pth"
python=$PWD/$build/venv/bin/python
rm -rf $tree
mkdir -p $tree
cp -r psmkit tests benchmarks scripts csrc docs changelog ./*.md pyproject.toml CMakeLists.txt $tree/
rm -f $tree/psmkit/_native/_logscan*.so
cp "$(find $build -path $tree -prune -o -name '_logscan*.so' -print | head -n 1)" $tree/psmkit/_native/
mkdir -p $tree/psmkit/lab/hostcuda
cp $build/csrc/hostcuda/lib/* $tree/psmkit/lab/hostcuda/

LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
# Python itself keeps memory until it ends: leaks are judged by tests that count.
ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
PYTHONPATH=$PWD/$tree
export LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS PYTHONPATH
cd $tree
"$python" -c 'import os, psmkit._native._logscan as m; assert m.__file__.startswith(os.getcwd()), m.__file__'
case $what in
test) exec "$python" -m pytest -q -p no:cacheprovider -m 'not slow' "${@:-tests}" ;;
fuzz) exec "$python" scripts/fuzz.py "${FUZZ_SECONDS:-60}" ;;
*) echo "sanitize.sh: test, fuzz or thread, not $what" >&2; exit 2 ;;
esac
