"""Programs that psm-nvcc compiles, and what they do on emulated CUDA."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .conftest import PROGRAMS, ROOT, needs_compiler, nvcc, run

pytestmark = needs_compiler
# Options as builds of NCCL and of nccl-tests give them.
OPTIONS = (
    *("-ccbin", "g++", "-gencode=arch=compute_80,code=sm_80", "-std=c++17", "--expt-extended-lambda", "-Xptxas"),
    *("-maxrregcount=96", "-Xfatbin", "-compress-all", "--compiler-options", "-fPIC -fvisibility=hidden"),
    *("-Xcompiler", "-Wall,-Wextra,-Werror", "-I", str(ROOT / "csrc/hostcuda/include")),
)


@pytest.fixture(scope="module", params=["-O0", "-O2"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled as relocatable device code and linked by psm-nvcc."""
    folder = tmp_path_factory.mktemp("nvcc")
    for name in ("launches", "other"):
        done = nvcc(*OPTIONS, request.param, "-dc", PROGRAMS / f"{name}.cu", "-o", folder / f"{name}.o")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = nvcc(*OPTIONS, "-dlink", folder / "launches.o", folder / "other.o", "-o", folder / "glue.o")
    assert done.returncode == 0, done.stderr
    objects = [folder / f"{name}.o" for name in ("launches", "other", "glue")]
    done = nvcc(*OPTIONS, *objects, "-lcudart", "-o", folder / "program")
    assert done.returncode == 0, done.stderr
    return folder / "program"


def test_a_launch_reaches_the_kernel_with_its_shape_and_arguments(program: Path) -> None:
    done = run(program, "run")
    assert (done.returncode, done.stderr) == (0, "")
    launches = [line for line in done.stdout.splitlines() if "<" in line and not line.startswith("cuda")]
    names = {line.split()[0] for line in launches}
    assert "_Z4fillIiLi32EEvPT_S0_4Pairi <2,3,1> <64,1,1> 128: 0 7 1 1" in launches
    assert "_Z4fillIdLi16EEvPT_S0_4Pairi <2,3,1> <64,1,1> 128:" in launches
    assert "_Z4fillIfLi1EEvPT_S0_4Pairi <1,1,1> <32,1,1> 0:" in launches
    assert "_ZN5inner12_GLOBAL__N_16hiddenEPFiiEj <1,1,1> <1,1,1> 0:" in launches
    assert {"_ZN5inner10overloadedEi <1,1,1> <2,1,1> 0:", "_ZN5inner10overloadedEd <1,1,1> <3,1,1> 0:"} < set(launches)
    # Two static kernels of the same name in two files.
    assert {"_ZL5alonev <2,1,1> <2,1,1> 0:", "_ZL5alonev <3,1,1> <3,1,1> 0:"} < set(launches)
    assert "_Z5otheri <5,1,1> <5,1,1> 0:" in launches
    assert "_Z4manyIJiijEEvDpT_ <1,1,1> <1,1,1> 0: 1 2 3" in launches
    assert "_Z4manyIJPKccEEvDpT_ <1,1,1> <1,1,1> 0:" in launches
    assert any(name.startswith("_Z3runIZ4mainEUl") for name in names)
    assert [line for line in launches if line.startswith("named")] == [
        "named <1,1,1> <1,1,1> 0: 11",
        "named <4,1,1> <1,1,1> 0: 12",
        "named <6,1,1> <7,1,1> 0: 13",
        "named <6,1,1> <7,1,1> 0: 14",
        "named <8,1,1> <1,1,1> 0: 13",
    ]
    assert set(re.findall(r"^cuda.*: (\d+)$", done.stdout, re.MULTILINE)) == {"0"}


def test_device_variables_have_their_initial_values(program: Path) -> None:
    said = run(program, "run").stdout
    assert "counter 5, table 4\n" in said
    assert "counter 6, twice 12\n" in said


def test_a_kernel_that_nobody_runs_is_refused_by_its_name(program: Path) -> None:
    done = run(program)
    refused = re.findall(r"hostcuda: kernel (\S+) is not launched: there is no GPU", done.stdout + done.stderr)
    assert {"_Z4fillIiLi32EEvPT_S0_4Pairi", "_ZL5alonev", "named", "_Z5otheri"} < set(refused)
    assert "cudaLaunchKernelExC(&config, (const void *)named, arguments): 801\n" in done.stdout
    # A kernel whose address is taken but that is never launched is known, too.
    assert "cudaOccupancyMaxActiveBlocksPerMultiprocessor(&size, many<char>, 64, 0): 0\n" in done.stdout


def test_sources_are_compiled_and_linked_at_once_with_a_make_rule(tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_text(
        '#include "inner.h"\n__global__ void k(int) {}\nint main() { k<<<1, VALUE>>>(0); return cudaGetLastError() == 801 ? 7 : 1; }\n'
    )
    (tmp_path / "inner.h").write_text("#define VALUE 3\n")
    (tmp_path / "y.cc").write_text("#include <cuda_runtime_api.h>\nint y() { return cudaDeviceSynchronize(); }\n")
    done = nvcc("x.cu", "y.cc", "-o", "program", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run(tmp_path / "program").returncode == 7
    done = nvcc("-MM", "-dc", "x.cu", cwd=tmp_path)
    assert done.stdout.split() == ["x.o:", "x.cu", "inner.h"]
    done = nvcc("-MMD", "-c", "x.cu", "-o", "sub.o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sub.d").read_text().replace("\\\n", "").split() == ["sub.o:", "x.cu", "inner.h"]


def test_an_error_of_the_host_compiler_cites_the_line_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_text(
        '__device__ int f()\n{\n    asm("");\n    return 1;\n}\n__global__ void k()\n{\n    f();\n}\nint main()\n{\n    nonsense;\n}\n'
    )
    done = nvcc("-c", "x.cu", cwd=tmp_path)
    assert done.returncode == 1
    assert "x.cu:12:5: error: " in done.stderr


def test_what_needs_device_code_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_text("int a;\n\n__managed__ int both;\n")
    done = nvcc("-c", "x.cu", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "psm-nvcc: x.cu:3: the __managed__ variable both is not supported\n"


def test_a_cuda_home_serves_builds_that_know_only_cuda_home(tmp_path: Path) -> None:
    done = nvcc("--cuda-home", tmp_path / "cuda")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'cuda'}\n")
    (tmp_path / "x.cc").write_text(
        "#include <cuda_runtime.h>\nint main() { int n; return cudaGetDeviceCount(&n) ? 1 : n; }\n"
    )
    (tmp_path / "Makefile").write_text(
        "x: x.cc\n\tg++ -I$(CUDA_HOME)/include $< -o $@ -L$(CUDA_HOME)/lib64 -lcudart\n"
        "\t$(CUDA_HOME)/bin/nvcc --version | grep release\n"
    )
    made = subprocess.run(
        ["make", "-s", f"CUDA_HOME={tmp_path / 'cuda'}"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(r"Cuda compilation tools, release 13\.\d+, V13\.\d+\.0\n", made.stdout)
    assert run(tmp_path / "x").returncode == 8
    # Again, over itself; and not over a folder of somebody else.
    assert nvcc("--cuda-home", tmp_path / "cuda").returncode == 0
    (tmp_path / "mine" / "sub").mkdir(parents=True)
    assert "is no folder that psm-nvcc made" in nvcc("--cuda-home", tmp_path / "mine").stderr


@pytest.mark.parametrize("macro", [(), ("-D__noinline__=__attribute__((noinline))",)], ids=["CUDA 13", "CUDA 12"])
def test_a_word_that_cuda_12_makes_a_macro_of_stays_one_of_the_host_compiler(
    macro: tuple[str, ...], tmp_path: Path
) -> None:
    """libstdc++ has it within attributes; sources have it alone."""
    source = tmp_path / "alone.cu"
    source.write_text(
        "#include <memory>\n"
        "__attribute__((__noinline__)) int one() { return 1; }\n"
        "__noinline__ int two() { return 2; }\n"
        "static __device__ __noinline__ void three() { __syncthreads(); }\n"
        "__attribute__((unused, __noinline__)) static int four() { return 4; }\n"
        "int main() { return *std::make_shared<int>(one() + two() + four()) - 7; }\n"
    )
    done = nvcc(*OPTIONS, *macro, source, "-lcudart", "-o", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    assert run(tmp_path / "alone").returncode == 0
