"""A copy of a user's NCCL tree with libpsm's transport in it, and psmkit's part compiled against it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from psmkit.model import programs
from psmkit.nccl import edits
from psmkit.nccl.edits import Change, TreeError
from psmkit.nvcc import home

__all__ = ["RECORD", "Plan", "Prepared", "glue", "headers_of", "look", "prepare"]

#: The file that says what was prepared.
RECORD = "prepared.json"
_OWN = "src/transport/psm_p2p.cc"
_RECORDER = "psm/plan_trace.h"
_LEFT_OUT = ("build", ".git")


@dataclass(frozen=True)
class Plan:
    """What will be done to a tree.

    Attributes:
        release: by its makefiles/version.mk, as ``2.30.7``.
        hooked: the tree has PassSM hooks, and a transport of its own that is replaced.
        changes: the edits of a plain tree, and those that record plans.
        traced: plans are recorded.
    """

    tree: Path
    release: str
    hooked: bool
    changes: tuple[Change, ...]
    traced: bool = False


@dataclass(frozen=True)
class Prepared:
    """What was made: the copy, the archive to link, and the build's environment and words."""

    plan: Plan
    folder: Path
    link: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """The build of the copy for emulated CUDA, without device code."""
        settings = [f"BUILDDIR={self.folder / 'build'}", f"CUDA_HOME={self.folder / 'cuda'}", "CUDARTLIB=cudart"]
        return ["make", "-C", str(self.folder / "nccl"), "-j2", "src.build", *settings]


def glue() -> Path:
    """The folder of psmkit's part: csrc/nccl of the checkout, or of the wheel."""
    for place in (Path(__file__).parents[2] / "csrc" / "nccl", Path(__file__).parent / "csrc" / "nccl"):
        if (place / "psm_hooks.h").exists():
            return place
    raise TreeError("csrc/nccl is not part of this installation: install a psmkit wheel, or use a checkout")


def _release(tree: Path) -> str:
    try:
        text = (tree / "makefiles" / "version.mk").read_text()
    except OSError:
        raise TreeError(
            f"{tree} is no NCCL tree: makefiles/version.mk is not there; give the folder that has src/"
        ) from None
    found = [re.search(rf"^NCCL_{name}\s*:?=\s*(\d+)", text, re.MULTILINE) for name in ("MAJOR", "MINOR", "PATCH")]
    if not all(found):
        raise TreeError(
            f"{tree}/makefiles/version.mk: looked for NCCL_MAJOR, NCCL_MINOR and NCCL_PATCH, and found none or some"
        )
    return ".".join(match[1] for match in found if match)


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _refuse_others(tree: Path, release: str) -> None:
    """RCCL, and releases that are too old: none of their places would be found, which says less."""
    if (tree / "src" / "include" / "rccl_vars.h").exists():
        raise TreeError(
            f"{tree} is RCCL (of NCCL {release}): psmkit's transport is compiled with CUDA's headers, not HIP's"
        )
    known = (glue() / "releases.h").read_text()
    oldest = tuple(int(re.search(rf"PSM_NCCL_OLDEST_{name} (\d+)", known)[1]) for name in ("MAJOR", "MINOR"))  # type: ignore[index]
    if _number(release) < oldest:
        raise TreeError(
            f"{tree} is NCCL {release}: psmkit's transport needs {'.'.join(map(str, oldest))} or newer. Older trees lack what it calls"
        )


def look(tree: Path, *, plan_trace: bool = False) -> Plan:
    """What a tree is, and what it needs. Changes nothing.

    Args:
        tree: the folder that has src/.
        plan_trace: with the macros of psm/plan_trace.h in the enqueue code.

    Raises:
        TreeError: it is no NCCL tree, or has a place that psmkit does not recognise.
    """
    tree = tree.absolute()
    release = _release(tree)
    _refuse_others(tree, release)
    header = tree / "src" / "include" / "transport.h"
    if not header.exists():
        raise TreeError(f"{tree} is no NCCL tree: src/include/transport.h is not there")
    hooked = re.search(r"^#\s*define\s+TRANSPORT_PSM_P2P\b", header.read_text(), re.MULTILINE) is not None
    if hooked and not (tree / _OWN).exists():
        raise TreeError(f"{tree} has PassSM hooks, but not {_OWN}, which psmkit replaces")
    changes = [] if hooked else edits.changes(tree)
    if plan_trace:
        changes += edits.changes(tree, edits.PLAN_TRACE)
    return Plan(tree, release, hooked, tuple(changes), plan_trace)


def headers_of(folder: Path) -> str:
    """A digest of all headers that psmkit's part was compiled with."""
    digest = hashlib.sha256()
    for path in sorted([*(folder / "nccl" / "src").rglob("*.h"), folder / "build" / "include" / "nccl.h"]):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _copy(plan: Plan, folder: Path) -> None:
    copy = folder / "nccl"
    shutil.copytree(plan.tree, copy, symlinks=True, ignore=_ignore(plan.tree))
    edits.apply(copy, list(plan.changes))
    include = copy / "src" / "include"
    if plan.hooked:
        (copy / _OWN).rename(copy / f"{_OWN}.replaced")
    else:
        shutil.copy(glue() / "psm_hooks.h", include / "psm_hooks.h")
    if plan.traced:
        (include / "psm").mkdir(exist_ok=True)
        shutil.copy(programs.tree() / "include" / _RECORDER, include / _RECORDER)


def _ignore(tree: Path) -> Callable[[str, list[str]], Iterator[str]]:
    def ignore(place: str, names: list[str]) -> Iterator[str]:
        return (name for name in names if Path(place) == tree and name in _LEFT_OUT)

    return ignore


def _why(text: str) -> str:
    """The reason in the output of CMake or a compiler; empty if there is none."""
    lacking = re.search(r"(?P<file>\S+?):\d+:\d+: fatal error: (?P<header>\S+): No such file or directory", text)
    if lacking:
        return (
            f"{lacking['file']} includes {lacking['header']}, which is neither in this tree nor among CUDA's headers. If another project has it, "
            "compile psmkit's part alone, with that folder in -DCUDA_INCLUDE (docs/linking.md)"
        )
    # CMake's text stands below its first line, and the first error of a compiler explains those that follow.
    found = re.search(r"CMake Error[^\n]*\n\n?(?P<text>.*?)\n\n", text, re.DOTALL) or re.search(
        r"(?P<text>[^\n]*error[^\n]*)", text
    )
    return " ".join(found["text"].split()) if found else ""


def _run(what: str, log: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
    with log.open("a") as out:
        out.write(f"$ {shlex.join(command)}\n")
        out.flush()
        try:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment, check=False)
        except OSError as error:
            raise TreeError(f"{what}: {command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise TreeError(
            f"{what} failed: {_why(log.read_text(errors='replace')) or f'status {done.returncode}'} ({log})"
        )


def prepare(plan: Plan, folder: Path) -> Prepared:
    """Copy the tree to ``folder``/nccl with the edits, and compile psmkit's part against it. The tree itself stays as it is.

    Raises:
        TreeError: the folder is not empty, or something could not be compiled; the text names the log.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise TreeError(f"{folder} is not empty: give a new folder to --out")
    if folder.is_relative_to(plan.tree):
        raise TreeError(f"{folder} is inside of {plan.tree}: give a folder outside of it to --out")
    # NCCL takes CUDA 13 from 2.27 on; where both packages are installed, an older tree gets those of CUDA 12.
    found = home.headers() if _number(plan.release) >= (2, 27) else home.headers(newest=12)
    if not any((include / "nv" / "target").exists() for include in found.folders):
        raise TreeError(
            f"CUDA's headers in {found.folders[0]} lack nv/target, which NCCL's headers need: pip install nvidia-cuda-cccl, or "
            "nvidia-cuda-cccl-cu12 for CUDA 12"
        )
    libpsm = programs.tree()
    _copy(plan, folder)
    home.make(folder / "cuda", found)
    log = folder / "prepare.log"
    build = folder / "build"
    home_of = f"CUDA_HOME={folder / 'cuda'}"
    make = ["make", "-C", str(folder / "nccl" / "src"), f"BUILDDIR={build}", home_of, str(build / "include" / "nccl.h")]
    _run("making nccl.h", log, make)
    _run(
        "looking at the tree with CMake",
        log,
        [
            *(
                "cmake",
                "-S",
                str(glue()),
                "-B",
                str(folder / "psm"),
                f"-DNCCL_SRC={folder / 'nccl'}",
                f"-DNCCL_BUILD={build}",
            ),
            f"-DCUDA_INCLUDE={';'.join(map(str, found.folders))}",
            *(f"-DPSM_PREFIX={libpsm}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"),
        ],
    )
    _run("compiling psmkit's part", log, ["cmake", "--build", str(folder / "psm"), "--parallel", "2"])
    link = (str(folder / "psm" / "libpsm_nccl.a"), f"-L{libpsm / 'lib'}", f"-Wl,-rpath,{libpsm / 'lib'}", "-lpsm")
    record = {"release": plan.release, "hooked": plan.hooked, "headers": headers_of(folder), "link": link}
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return Prepared(plan, folder, link)
