"""The CUDA engine of plans: ranks that are threads of one process, on emulated CUDA, under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from psmkit.lab import cuda
from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
FOUR = ground.ROOT / "tests" / "hostcuda" / "four.toml"
PARTS = ("core", "shm", "conn", "p2p", "launch", "proxy", "plan")
KINDS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    # Fences of csrc/base order what other processes see.
    "thread": ["-fsanitize=thread", "-Wno-tsan"],
}
JOBS = [
    # ranks, scheduler, PassSM, groups
    "4 1 1 3",
    "4 0 0 3",
    "3 0 1 1 graph",
    "4 1 0 1 graph",
    "4 1 1 1 abort",
    "4 0 0 1 abort",
    "4 0 1 1 graph abort",
    "4 1 1 0 race=10000",
    "4 0 0 0 race=10000",
    "4 1 0 0 race=0",
]
# A kernel that an abort ends is gone before its operations are posted.
LATE = "plan.host_task:slow=30ms"


@pytest.fixture(scope="module", params=["address", pytest.param("thread", marks=pytest.mark.slow)])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    rules = ground.ROOT / "csrc" / "planrules"
    includes = [*ground.includes(ground.generate(folder / "generated")), f"-I{rules}"]
    sources = [*compiled.BASE.glob("*.c"), *rules.glob("*.c"), HERE / "ranks.c"]
    for part in PARTS:
        sources += [path for path in (ground.PSM / part).glob("*.c") if not path.name.startswith("fuzz")]
    # Of graphs libpsm's table has no more than libpsm needs.
    libraries = [f"-L{cuda.folder()}", f"-l:{cuda.LIBRARIES['cudart13']}", "-lpthread", "-ldl"]
    return compiled.link(folder / "ranks", sources, [*compiled.WARNINGS, *includes, *KINDS[request.param]], libraries)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.replace(" ", "-"))
def test_ranks_get_right_data_and_end_whole(program: Path, tmp_path: Path, job: str) -> None:
    env = cuda.environment(compiled.environment(PSM_TOPOLOGY=str(FOUR), PSM_HOSTCUDA_BANNER="0"))
    env |= {"PSM_RECORD_DIR": str(tmp_path), "ASAN_OPTIONS": "detect_leaks=1"}
    if "race" in job:
        env["PSM_FAULTS"] = LATE
    done = subprocess.run([program, *job.split()], env=env, capture_output=True, text=True, timeout=300)
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{job[0]} ranks, 0 wrong" in done.stdout
