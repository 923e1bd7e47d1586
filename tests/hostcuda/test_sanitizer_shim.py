"""The shim stands between a program and whatever CUDA it has: by symbols, by dlsym, by the driver's own tables of entry points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psmkit.lab import sanitizer
from psmkit.lab.cuda import folder
from tests.hostcuda.conftest import HERE, emulated
from tests.hostcuda.sanitizing import STREAM, Program, Told

pytestmark = emulated
Shimmed = Callable[..., Program]
RELEASE = """
destroyed = new('cudaStream_t *'); ok.cudaStreamCreate(destroyed); ok.cudaStreamDestroy(destroyed[0])
bad = value(destroyed[0])
drv.ok.cuInit(0)
"""


@pytest.fixture
def shimmed(tmp_path: Path) -> Iterator[Shimmed]:
    """Starts programs under the shim; they share a record folder."""
    programs: list[Program] = []
    records = tmp_path / "records"
    records.mkdir(mode=0o700)

    def begin(code: str, library: str = "cudart12", **env: str) -> Program:
        programs.append(Program(library, "shim", "warn", records, code, env))
        return programs[-1]

    yield begin
    for program in programs:
        program.close()


def compiled(tmp_path: Path, source: str, name: str) -> Path:
    """A library from a C file of this folder."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / name), str(HERE / source), "-ldl"], check=True)
    return tmp_path / name


@pytest.mark.parametrize("library", ["cudart12", "cudart13"])
def test_both_sonames_are_checked(shimmed: Shimmed, library: str) -> None:
    told = shimmed(STREAM + "ok.cudaStreamDestroy(s); rt.cudaStreamSynchronize(s)", library).end()
    assert "already destroyed" in told.one()


def test_driver_calls_through_the_drivers_entry_points_are_checked(shimmed: Shimmed) -> None:
    told = shimmed(
        RELEASE
        + """
        f = drv.new('void **'); st = drv.new('int *')
        drv.ok.cuGetProcAddress_v2(b'cuStreamSynchronize', f, 12090, 0, drv.ffi.cast('void *', st))
        drv.ffi.cast('int (*)(uintptr_t)', f[0])(bad)
        """
    ).end()
    assert told.one().startswith("cuStreamSynchronize got stream") and "already destroyed" in told.one()


@pytest.mark.parametrize(
    ("call", "more"),
    [("cudaGetDriverEntryPoint", ""), ("cudaGetDriverEntryPointByVersion", "12090, ")],
)
def test_driver_calls_through_the_runtimes_entry_points_are_checked(shimmed: Shimmed, call: str, more: str) -> None:
    told = shimmed(
        RELEASE
        + f"""
        f = new('void **')
        ok.{call}(b'cuStreamSynchronize', f, {more}0, ffi.NULL)
        ffi.cast('int (*)(uintptr_t)', f[0])(bad)
        """
    ).end()
    assert told.one().startswith("cuStreamSynchronize got stream")


def test_entry_point_has_the_parameters_of_the_version_that_was_asked_for(shimmed: Shimmed) -> None:
    # cuStreamGetCaptureInfo has other parameters in each of 10.1, 11.3 and 12.3; the first is not stood in for
    told = shimmed(
        RELEASE
        + STREAM
        + """
        f = drv.new('void **')
        status = drv.new('int *'); guard = drv.new('uint64_t[8]'); n = drv.new('size_t *', 77)
        drv.ok.cuGetProcAddress_v2(b'cuStreamGetCaptureInfo', f, 11030, 0, drv.ffi.NULL)
        g = drv.ffi.cast('int (*)(uintptr_t, int *, uint64_t *, void **, void **, size_t *)', f[0])
        assert g(value(s), status, drv.ffi.NULL, drv.ffi.NULL, drv.ffi.NULL, n) == 0 and status[0] == 0
        drv.ok.cuGetProcAddress_v2(b'cuStreamGetCaptureInfo', f, 12030, 0, drv.ffi.NULL)
        g = drv.ffi.cast('int (*)(uintptr_t, int *, uint64_t *, void **, void **, void **, size_t *)', f[0])
        assert g(value(s), status, drv.ffi.NULL, drv.ffi.NULL, drv.ffi.NULL, drv.ffi.NULL, n) == 0
        """
    ).end()
    told.expect_nothing()


def test_program_without_a_shared_runtime_is_told_that_only_the_driver_is_checked(tmp_path: Path) -> None:
    code = """
from psmkit.lab.cuda import Face
drv = Face("cuda")
drv.ok.cuInit(0)
c = drv.new("CUcontext *"); drv.ok.cuDevicePrimaryCtxRetain(c, 0); drv.ok.cuCtxSetCurrent(c[0])
s = drv.new("CUstream *"); drv.ok.cuStreamCreate(s, 0); drv.ok.cuStreamDestroy_v2(s[0]); drv.cuStreamSynchronize(s[0])
"""
    env = {**os.environ, "PSM_RECORD_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=sanitizer.environment(base=env),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=HERE.parents[1],
    )
    told = Told.of(done.returncode, done.stdout + done.stderr)
    assert [r for r in told.remarks if "only calls of the CUDA driver are checked" in r] == told.remarks
    assert len(told.remarks) == 1
    assert told.one().startswith("cuStreamSynchronize got stream")


def test_programs_that_use_no_cuda_are_left_alone(tmp_path: Path) -> None:
    env = sanitizer.environment(base={**os.environ, "PSM_RECORD_DIR": str(tmp_path), "NCCL_DEBUG": "INFO"})
    done = subprocess.run(["ls", "/"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "NCCL" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_programs_with_the_runtime_of_asan_start() -> None:
    where = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True, timeout=60
    )
    env = sanitizer.environment(
        base={**os.environ, "LD_PRELOAD": where.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    )
    done = subprocess.run(["ls", "/"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_rtld_next_of_other_libraries_keeps_its_meaning(tmp_path: Path) -> None:
    # dlsym(RTLD_NEXT) looks behind its caller: were the shim the caller, this library would find itself
    other = compiled(tmp_path, "interposer.c", "libinterposer.so")
    env = sanitizer.environment(base={**os.environ, "LD_PRELOAD": str(other)})
    code = "import ctypes; print(ctypes.CDLL(None).getpid())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) > 1000000


FAKE = """
import ctypes, os, sys
cuda = ctypes.CDLL(os.environ["FAKE"])
stream = ctypes.c_void_p()
def make():
    assert cuda.cudaStreamCreate(ctypes.byref(stream)) == 0
    return stream.value
def rest(*words):
    print("RESTS", *words, flush=True)
    sys.stdin.readline()
"""


def fake(tmp_path: Path, code: str, rank: int) -> subprocess.Popen[str]:
    library = tmp_path / "libcudart.so.12"
    env = {**os.environ, "PSM_RECORD_DIR": str(tmp_path), "FAKE": str(library), "RANK": str(rank)}
    return subprocess.Popen(
        [sys.executable, "-c", FAKE + code],
        env=sanitizer.environment(base=env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_own_handle_is_own_although_another_process_has_its_number(tmp_path: Path) -> None:
    compiled(tmp_path, "fake_cudart.c", "libcudart.so.12")
    tmp_path.chmod(0o700)
    code = "make(); rest(); print(cuda.cudaStreamSynchronize(stream)); cuda.cudaStreamDestroy(stream)"
    both = [fake(tmp_path, code, rank) for rank in (0, 1)]
    for program in both:
        assert program.stdout is not None
        assert program.stdout.readline() == "RESTS\n"
    for program in both:
        out, _ = program.communicate("\n", timeout=60)
        assert out == "0\n"


def test_foreign_number_is_told_even_where_cuda_takes_it(tmp_path: Path) -> None:
    compiled(tmp_path, "fake_cudart.c", "libcudart.so.12")
    tmp_path.chmod(0o700)
    with fake(tmp_path, "make(); rest(); rest()", 0) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "RESTS\n"
        user = fake(tmp_path, "print(cuda.cudaStreamSynchronize(ctypes.c_void_p(0x5000)))", 1)
        out, _ = user.communicate(timeout=60)
        told = Told.of(user.returncode, out)
        assert f"cudaStreamSynchronize got stream 0x5000, which belongs to rank 0, process {owner.pid}" == told.one()
        owner.communicate("\n\n", timeout=60)


def test_unknown_handle_that_cuda_takes_is_not_told(tmp_path: Path) -> None:
    # its birth may not have been seen
    compiled(tmp_path, "fake_cudart.c", "libcudart.so.12")
    tmp_path.chmod(0o700)
    with fake(tmp_path, "print(cuda.cudaStreamSynchronize(ctypes.c_void_p(0x6000)))", 1) as user:
        out, _ = user.communicate(timeout=60)
    Told.of(user.returncode, out).expect_nothing()


def test_lines_carry_the_device_that_cuda_says(tmp_path: Path) -> None:
    compiled(tmp_path, "fake_cudart.c", "libcudart.so.12")
    tmp_path.chmod(0o700)
    code = "p = ctypes.c_void_p(); cuda.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(64)); cuda.cudaMemset(p, 0, ctypes.c_size_t(65))"
    with fake(tmp_path, code, 1) as user:
        out, _ = user.communicate(timeout=60)
    told = Told.of(user.returncode, out)
    assert "1 beyond the end" in told.one()
    assert f":{user.pid} [3] NCCL WARN sanitizer report" in out


def test_the_shim_lies_beside_the_emulated_libraries() -> None:
    assert sanitizer.shim().parent == folder()


LINKED = """
int cudaStreamCreate(void **), cudaStreamDestroy(void *), cudaStreamSynchronize(void *), cuStreamQuery(void *);
int main(void)
{
    void *stream;
    return cudaStreamCreate(&stream) || cudaStreamSynchronize(stream) || cudaStreamDestroy(stream) ||
           cudaStreamSynchronize(stream) != 400 || cuStreamQuery(stream) != 400;
}
"""


def test_program_that_is_linked_to_cuda_is_checked(tmp_path: Path) -> None:
    (tmp_path / "linked.c").write_text(LINKED)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    libraries = [str(folder() / name) for name in ("libcudart.so.12", "libcuda.so.1")]
    options = [f"-Wl,-rpath,{folder()}", "-Wl,--allow-shlib-undefined"]
    program = tmp_path / "linked"
    subprocess.run([compiler, "-o", program, tmp_path / "linked.c", *libraries, *options], check=True)
    env = sanitizer.environment(base={**os.environ, "PSM_RECORD_DIR": str(tmp_path)})
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    told = Told.of(done.returncode, done.stdout + done.stderr)
    assert done.returncode == 0
    assert [r.split()[0] for r in told.reports] == ["cudaStreamSynchronize", "cuStreamQuery"]
    assert "linked+0x" in told.stacks[0].split(" at: ")[1].split(" < ")[0]
