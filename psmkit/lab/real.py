"""A child process on the real CUDA of this machine, under the same checks as on the emulated one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psmkit.lab import sanitizer
from psmkit.lab.cuda import LabError, folder

__all__ = ["RealCuda", "find"]


@dataclass(frozen=True, slots=True)
class RealCuda:
    """How child processes see the CUDA of this machine; the handle sanitizer is preloaded.

    Args:
        folder: where the processes write their record files; made if need be, for this user only.
        path: the runtime library, which libpsm loads.
        runtime: its version, as 13000.
        driver: the version of CUDA that the driver has.
        devices: how many there are. Ranks take them in turn.
        node: which pretended node the process is on; all have the same devices.
        leaks: report what is left at the end of a process.
        faults: faults on purpose at libpsm's sites (docs/faults.md); CUDA functions are no sites here.
        stall_report: seconds after which libpsm reports a connection that does not move; 0: never.

    Raises:
        LabError: a fault names a CUDA function.
    """

    folder: Path
    path: str
    runtime: int
    driver: int
    devices: int
    node: int = 0
    leaks: bool = False
    faults: str = ""
    stall_report: float = 10.0

    def __post_init__(self) -> None:
        for fault in self.faults.split(";"):
            if (site := fault.strip().partition(":")[0]).startswith(("cu", "nvml")):
                raise LabError(
                    f"a fault at {site} on the real CUDA: only the emulated CUDA has sites in its functions; leave out --cuda real, or name a site of libpsm"
                )

    def environment(self, rank: int | None = None, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a child, from ``base`` (this process's).

        Raises:
            LabError: the sanitizer was not built.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        env = sanitizer.environment("warn", leaks=self.leaks, base=base) | {
            "PSM_CUDA_LIBRARY": self.path,
            "PSM_RECORD_DIR": str(self.folder),
            "PSM_RECORD_KEEP": "1",
            "PSM_NODE": str(self.node),
            "PSM_STALL_REPORT": f"{self.stall_report:g}",
        }
        for name, value in (("PSM_FAULTS", self.faults or None), ("PSM_RANK", None if rank is None else str(rank))):
            env.pop(name, None)
            if value is not None:
                env[name] = value
        return env


def find(
    records: Path, program: Path, *, leaks: bool = False, faults: str = "", stall_report: float = 10.0
) -> RealCuda:
    """The CUDA that ranks find here: PSM_CUDA_LIBRARY, or a libcudart on the library path.

    Args:
        records: where record files go.
        program: psm_rank, which looks for it.
        leaks, faults, stall_report: as in RealCuda.

    Raises:
        LabError: there is none, it has no device, or it is the emulated one.
    """
    attempt = "--cuda real: looking for the CUDA of this machine"
    try:
        done = subprocess.run([str(program), "devices"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"{attempt}: {error}") from None
    if done.returncode:
        raise LabError(f"{attempt}: {done.stderr.strip() or f'{program} ended with {done.returncode}'}")
    row = json.loads(done.stdout.splitlines()[-1])
    path = str(row["path"])
    if Path(os.path.realpath(path)).parent == folder().resolve():
        raise LabError(
            f"{attempt}: {path} is psmkit's emulated CUDA; take its folder off LD_LIBRARY_PATH, or name a runtime by PSM_CUDA_LIBRARY"
        )
    if not row["devices"]:
        raise LabError(f"{attempt}: {path} has no device")
    return RealCuda(
        records,
        path,
        int(row["runtime"]),
        int(row["driver"]),
        int(row["devices"]),
        leaks=leaks,
        faults=faults,
        stall_report=stall_report,
    )
