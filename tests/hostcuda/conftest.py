"""hostcuda as its users call it: the same tests over both runtime sonames, and over any other library with CUDA's ABI.

PSM_TEST_CUDART (and PSM_TEST_CUDA, PSM_TEST_NVML) name libraries to test instead: `make test-gpu` runs the suite over a real CUDA.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab.cuda import CudaError, Face
from tests.hostcuda.buffers import Buffers
from tests.hostcuda.graphs import Graphs
from tests.hostcuda.peers import Peer
from tests.hostcuda.vmm import Vmm

REAL = os.environ.get("PSM_TEST_CUDART")
SONAMES = ["cudart13"] if REAL and "so.13" in REAL else ["cudart12"] if REAL else ["cudart12", "cudart13"]
HERE = Path(__file__).parent
NEWER_DRIVER = 36  # cudaErrorCallRequiresNewerDriver
# Two nodes of two GPUs would hide three of them: the tests see four on one.
TOPOLOGY = str(HERE / "four.toml")

os.environ.setdefault("PSM_TOPOLOGY", TOPOLOGY)
os.environ.setdefault("PSM_HOSTCUDA_BANNER", "0")


def _devices() -> int:
    """How many devices a real CUDA has here, without a call of it."""
    found = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, len(visible.split(",")) if visible else 0)


def needs_devices(count: int) -> pytest.MarkDecorator:
    """For a test that needs so many devices; the emulated machine has four."""
    return pytest.mark.skipif(bool(REAL) and _devices() < count, reason=f"needs {count} devices")


def differs(reason: str) -> pytest.MarkDecorator:
    """For a test of what hostcuda does and a real CUDA does otherwise (docs/gpu.md).

    It is skipped there: where the two differ a real CUDA often ends the process, or leaves it in a state in which later tests fail.
    """
    return pytest.mark.skipif(bool(REAL), reason=f"a real CUDA differs: {reason}")


emulated = pytest.mark.skipif(bool(REAL), reason="asks hostcuda for what a real CUDA does not have")


def ask(face: Face, name: str, *arguments: Any, kind: str = "int *") -> Any:
    """The one value that a function writes to its first argument."""
    out = face.new(kind)
    getattr(face.ok, name)(out, *arguments)
    return out[0]


def number(face: Face, pointer: Any) -> int:
    """A pointer or a handle as a number."""
    return int(face.ffi.cast("uintptr_t", pointer))


def driver_stream(drv: Face, rt: Face, stream: Any) -> Any:
    """A stream of the runtime as the driver's."""
    return drv.ffi.cast("CUstream", number(rt, stream))


def noise(n: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(n)


@pytest.fixture(scope="session", params=SONAMES)
def rt(request: pytest.FixtureRequest) -> Face:
    """The runtime API, once a soname."""
    return Face(request.param, REAL)


@pytest.fixture(scope="session")
def drv() -> Face:
    """The driver API, initialised."""
    face = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
    face.ok.cuInit(0)
    return face


@pytest.fixture(scope="session")
def nvml() -> Face:
    """NVML, initialised."""
    face = Face("nvml", os.environ.get("PSM_TEST_NVML"))
    face.ok.nvmlInit_v2()
    return face


@pytest.fixture
def lab(rt: Face) -> Iterator[Graphs]:
    """Streams, events, gates and graphs of one test."""
    with Graphs(rt) as made:
        yield made


@pytest.fixture
def memory(rt: Face) -> Iterator[Buffers]:
    """Allocations of one test."""
    with Buffers(rt) as buffers:
        yield buffers


@pytest.fixture
def current(rt: Face, drv: Face) -> Face:
    """The driver, with the context of device 0 current in this thread."""
    rt.ok.cudaFree(rt.ffi.NULL)
    return drv


@pytest.fixture
def vmm(current: Face) -> Iterator[Vmm]:
    """Virtual memory of one test; the context of device 0 is current."""
    with Vmm(current) as made:
        yield made


@pytest.fixture(scope="module")
def peer(rt: Face) -> Iterator[Peer]:
    """Another process, for all tests that leave it alive."""
    with Peer(rt) as other:
        yield other


@pytest.fixture
def mortal(rt: Face) -> Iterator[Peer]:
    """Another process, for one test, which may end it."""
    with Peer(rt) as other:
        yield other


@pytest.fixture(autouse=True)
def clean_error_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """Device 0 is current and no error is left over, before each test that uses the runtime."""
    if "rt" in request.fixturenames:
        rt = request.getfixturevalue("rt")
        rt.cudaSetDevice(0)
        rt.cudaGetLastError()
    yield


Child = Callable[..., "subprocess.CompletedProcess[str]"]

PROLOGUE = """
import sys, os, signal, struct
from psmkit.lab.cuda import Face, CudaError
rt = Face({library!r}, {path!r})
ok = rt.ok
new = rt.new
ffi = rt.ffi
"""


@pytest.fixture
def child(rt: Face) -> Child:
    """Runs Python code in a process of its own, with `rt`, `ok`, `new` and `ffi` at hand; for what ends or spoils a process."""

    def run(
        code: str, *arguments: str, env: dict[str, str] | None = None, check: bool = True, timeout: float = 60
    ) -> Any:
        text = PROLOGUE.format(library=rt.library, path=str(rt.path)) + textwrap.dedent(code)
        done = subprocess.run(
            [sys.executable, "-c", text, *arguments],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=HERE.parents[1],
        )
        if check and done.returncode:
            pytest.fail(f"child ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture
def expect_child(child: Child) -> Child:
    """`child`, for a test whose assertions are in the code of the child: any of them that fails ends it with a status, which fails the test."""

    def run(code: str, *arguments: str, env: dict[str, str] | None = None, timeout: float = 60) -> Any:
        done = child(code, *arguments, env=env, timeout=timeout, check=False)
        assert done.returncode == 0, f"child ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(params=["inside", "shim"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts programs under the handle sanitizer, in hostcuda or in the shim over it; they share a record folder."""
    from tests.hostcuda.sanitizing import Program

    programs: list[Program] = []
    records = tmp_path / "records"
    records.mkdir(mode=0o700)

    def begin(code: str, *, mode: str = "warn", **env: str) -> Program:
        programs.append(Program("cudart12", request.param, mode, records, code, env))
        return programs[-1]

    yield begin
    for program in programs:
        program.close()


@pytest.fixture
def run(start: Callable[..., Any]) -> Callable[..., Any]:
    """Runs one program under the handle sanitizer to its end."""

    def whole(code: str, *, mode: str = "warn", **env: str) -> Any:
        return start(code, mode=mode, **env).end()

    return whole


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test of a function that came with a later CUDA than the one that is tested, or than its driver."""
    try:
        return (yield)
    except AttributeError as error:
        if REAL and "not found in library" in str(error):
            pytest.skip(f"this CUDA is older: {str(error).partition(' not found')[0]}")
        raise
    except CudaError as error:
        if REAL and error.code == NEWER_DRIVER:
            pytest.skip(f"this driver is older: {error}")
        raise


# Under ASan (scripts/sanitize.sh) these programs preload another library first, are not linked with ASan, or are meant to end by
# the very signal that ASan takes for itself.
_NOT_UNDER_ASAN = (
    "shim]",
    "test_sanitizer_shim.py",
    "test_seed_bug.py",
    "test_example.py",
    "test_host_cannot_read_device_memory",
    "test_registering_what_is_not_mapped",
    "test_fatal_signal_that_was_sent",
    "test_host_access_to_device_memory",
    "test_the_host_crashes_where_it_has_no_access",
    "test_outside_strict_mode_the_host_sees_device_memory",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        return
    for item in items:
        if "tests/hostcuda/" in item.nodeid and any(name in item.nodeid for name in _NOT_UNDER_ASAN):
            item.add_marker(pytest.mark.skip(reason="cannot run below AddressSanitizer"))
