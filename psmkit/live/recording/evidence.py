"""Takes what can be seen of a job at one moment. A part that cannot be taken is noted with the reason, and the rest is taken."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psmkit.live import ras
from psmkit.live.recording.journal import Journal
from psmkit.live.recording.layout import FACT, Layout
from psmkit.live.recording.rest import Looks
from psmkit.live.recording.settings import masked, masked_words
from psmkit.live.recording.watch import Seen, Watch, data_of

if TYPE_CHECKING:
    from psmkit.model.inspection import Inspection

__all__ = [
    "copy_left",
    "copy_logs",
    "elsewhere",
    "inspect",
    "keep_records",
    "kernel_lines",
    "look_again",
    "surroundings",
    "take",
]

_MOST_INSPECTED = 64
_BETWEEN = 2.0  # seconds between two answers of RAS: equal ones prove that nothing moves
_PATIENCE = 20.0
_PIECE = 1 << 20
_PROC = ("status", "limits", "cgroup", "wchan", "io", "sched")
_LIBRARY = re.compile(
    r"/[^\s]*/(?:lib(?:nccl|rccl|cuda|cudart|psm|torch|mpi|nvidia-ml|fabric|ibverbs)[\w.+-]*\.so[.\d]*)$"
)
_KERNEL = re.compile(r"<\d+>\[ *(\d+\.\d+)\]")
_PIDS = re.compile(r"\b(?:pid|process|task)[ =:#]{1,2}(\d+)|[\w)]\[(\d+)\]", re.IGNORECASE)
_TOOLS = (
    ("nvidia-topology", ("nvidia-smi", "topo", "-m")),
    ("nvidia-smi", ("nvidia-smi", "-q")),
    ("lspci", ("lspci", "-tv")),
    ("rdma", ("ibv_devinfo",)),
)


def take(
    layout: Layout,
    watch: Watch,
    journal: Journal,
    port: int,
    *,
    number: int,
    stop: Callable[[], bool] = lambda: False,
    seen: Callable[[Sequence[Inspection]], None] = lambda _: None,
) -> None:
    """Take everything that only a living job shows.

    Args:
        number: of the occasion, from 1; files of a later one have other names.
        stop: asked between the parts; True: leave out what is left.
        seen: called with the inspections.
    """
    targets = watch.ranks(living=True) or watch.living
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("processes", lambda: _processes(layout, watch.living, number)),
        ("answer of RAS", lambda: _ras(layout, port, f"{number}a")),
        ("flight recorder", lambda: _dump(layout)),
        ("stacks", lambda: inspect([one.pid for one in targets[:_MOST_INSPECTED]], layout.stacks / str(number), seen)),
        ("second answer of RAS", lambda: _again(layout, port, number)),
    )
    for what, step in steps:
        if stop():
            journal.missed(what, "the user ended the job meanwhile")
            continue
        _step(journal, what, step)


def look_again(layout: Layout, journal: Journal, pids: Sequence[int], name: str, seen: Looks) -> None:
    """Inspect processes once more: whether they only poll."""
    _step(journal, "another look", lambda: inspect(pids, layout.stacks / name, seen.note))


def surroundings(layout: Layout, watch: Watch, journal: Journal) -> None:
    """Take what a job leaves, and what surrounds it; its processes may be gone."""
    for what, step in (
        ("logs elsewhere", lambda: copy_logs(layout, watch)),
        ("environment", lambda: _environment(layout, watch)),
        ("versions", lambda: _versions(layout, watch)),
        ("lines of the kernel", lambda: kernel_lines(layout, journal.started, set(watch.seen))),
    ):
        _step(journal, what, step)
    for what, command in _TOOLS:
        if not (layout.facts / f"{what}.txt").exists():
            _step(journal, what, lambda what=what, command=command: _tool(layout, what, command))  # type: ignore[misc]


class _MissingError(Exception):
    """A part is not there; the text says why."""


def _step(journal: Journal, what: str, step: Callable[[], str]) -> None:
    begun = time.monotonic()
    try:
        path = step()
    except _MissingError as error:
        journal.missed(what, str(error))
    except OSError as error:
        journal.missed(what, (error.strerror or str(error)).lower())
    else:
        if path:
            journal.took(what, path, time.monotonic() - begun)


# ---- of living processes ----


def inspect(pids: Sequence[int], folder: Path, noted: Callable[[Sequence[Inspection]], None] = lambda _: None) -> str:
    """Write an inspection of each process into a folder; the processes go on. ``noted`` is called with them."""
    # Here and not above: most jobs end well, and these modules are most of the agent's start.
    from psmkit.live import hosts
    from psmkit.live.inspect import Options
    from psmkit.model.inspection import to_json

    if not pids:
        raise _MissingError("no process of the job lives")
    targets = [hosts.Target("localhost", pid) for pid in pids]
    found = hosts.inspect_all(
        targets, Options(timeout=_PATIENCE), deadline=_PATIENCE, parallel=max(2, os.cpu_count() or 1)
    )
    seen = [one for one in found if one.threads]
    if not seen:
        notes = dict.fromkeys(note.what for one in found for note in one.notes)
        raise _MissingError("; ".join(notes) or "no thread was seen")
    noted(seen)
    folder.mkdir(parents=True, exist_ok=True)
    for one in seen:
        hidden = replace(one, command=tuple(masked_words(list(one.command))))
        (folder / hosts.file_name(one)).write_text(json.dumps(to_json(hidden)) + "\n")
    return f"stacks/{folder.name}"


def _processes(layout: Layout, living: Iterable[Seen], number: int) -> str:
    out = [f"{FACT}: what /proc says of the processes of the job"]
    for one in living:
        out.append(f"\n== process {one.pid}: {' '.join(masked_words(one.command))}")
        for name in _PROC:
            with contextlib.suppress(OSError):
                out.append(f"-- {name}\n{Path(f'/proc/{one.pid}/{name}').read_text(errors='replace').rstrip()}")
        with contextlib.suppress(OSError):
            found = []
            for entry in sorted(os.scandir(f"/proc/{one.pid}/fd"), key=lambda e: int(e.name)):
                with contextlib.suppress(OSError):
                    found.append(f"{entry.name} -> {os.readlink(entry.path)}")
            out.append("-- fd\n" + "\n".join(found))
    path = layout.facts / f"processes-{number}.txt"
    path.write_text("\n".join(out) + "\n", errors="backslashreplace")
    return f"facts/{path.name}"


def _ras(layout: Layout, port: int, name: str) -> str:
    text = ras.ask(port)
    if text is None:
        raise _MissingError(f"nobody answers at port {port}: NCCL has RAS from 2.24 on")
    (layout.ras / f"ras-{name}.txt").write_text(text)
    return f"ras/ras-{name}.txt"


def _again(layout: Layout, port: int, number: int) -> str:
    first = layout.ras / f"ras-{number}a.txt"
    if not first.exists():
        raise _MissingError("there was no first one")
    time.sleep(max(0.0, first.stat().st_mtime + _BETWEEN - time.time()))
    return _ras(layout, port, f"{number}b")


def _dump(layout: Layout) -> str:
    """Ask the ranks of PyTorch for their flight recorders, and wait a moment for the dumps."""
    asked = 0
    for pipe in sorted(layout.flight.glob("pipe_rank_*")):
        try:
            fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # nobody listens
            continue
        try:
            asked += bool(os.write(fd, b"1\n"))
        finally:
            os.close(fd)
    if not asked:
        if any(layout.flight.glob("trace_rank_*")):
            return "flight"
        raise _MissingError("no process has a flight recorder of PyTorch")
    end = time.monotonic() + 5.0
    while time.monotonic() < end and len(list(layout.flight.glob("trace_rank_*"))) < asked:
        time.sleep(0.1)
    if not any(layout.flight.glob("trace_rank_*")):
        raise _MissingError(f"{asked} ranks were asked and wrote no dump within 5 s")
    return "flight"


# ---- of the job and its surroundings ----


def elsewhere(layout: Layout, watch: Watch) -> dict[str, Any]:
    """What the job writes outside of the folder, since the user's settings or a launcher say so.

    Returns:
        ``files``: paths of logs and dumps, each with the inode that it has now, None if it is not there. ``records``: folders with records.
    """
    sources = set(watch.elsewhere)
    for one in watch.ranks():
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            stem = one.environment.get(name, "")
            if stem and not stem.startswith(str(layout.flight)) and one.rank is not None:
                sources.add(Path(f"{stem}{one.rank}"))
    folders = {one.environment.get("PSM_RECORD_DIR") or "" for one in watch.seen.values()}
    return {
        "files": {str(path): _inode(path) for path in sorted(sources)},
        "records": sorted(folders - {"", str(layout.records.absolute())}),
    }


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def copy_logs(layout: Layout, watch: Watch) -> str:
    """Copy log files, dumps and records that the user's settings send elsewhere."""
    known = elsewhere(layout, watch)
    return "copied" if _copy_from(layout, known, watch.seen) else ""


def copy_left(layout: Layout, document: dict[str, Any]) -> None:
    """Copy what a job wrote elsewhere whose agent was killed before it did so. What could not be copied is noted in ``document``.

    A path may belong to a later run by now: a file that was replaced is left out.
    """
    known = document.get("elsewhere") or {"files": {}, "records": []}
    files = {}
    for name, inode in known["files"].items():
        now = _inode(Path(name))
        if now is None or (inode is not None and now != inode):
            why = "it is gone" if now is None else "another file has its name now"
            document["failed"].append({"what": name, "why": why})
        else:
            files[name] = now
    try:
        _copy_from(layout, {**known, "files": files}, {one["pid"] for one in document["processes"]})
    except OSError as error:
        document["failed"].append({"what": "logs elsewhere", "why": (error.strerror or str(error)).lower()})


def _copy_from(layout: Layout, known: dict[str, Any], pids: Collection[int]) -> bool:
    """Copy the files and the records of :func:`elsewhere`. Returns whether there were files."""
    taken: dict[str, Path] = {}
    for source in map(Path, known["files"]):
        if source.is_file():
            folder = layout.flight if "trace" in source.name and source.suffix != ".log" else layout.copied
            name = source.name if taken.get(source.name, source) == source else f"{len(taken)}-{source.name}"
            taken[name] = source
            shutil.copyfile(source, folder / name)
    for path in _records_in(known["records"], pids):
        _copy(path, layout.records / path.name)
    return bool(taken)


def records_of(layout: Layout, watch: Watch) -> list[Path]:
    """The record files of the job's processes, also those in a folder of the user's (PSM_RECORD_DIR)."""
    return [*sorted(layout.records.glob("*.rec")), *_records_in(elsewhere(layout, watch)["records"], watch.seen)]


def _records_in(folders: Iterable[str], pids: Collection[int]) -> list[Path]:
    out = []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.rec")):
            words = path.stem.rsplit("-", 2)
            if len(words) == 3 and words[1].isdecimal() and int(words[1]) in pids:
                out.append(path)
    return out


def keep_records(layout: Layout, watch: Watch) -> None:
    """Copy the records as they are now, before the ranks write how they are being ended."""
    with contextlib.suppress(OSError):
        layout.kept.mkdir(mode=0o700, exist_ok=True)
        for path in records_of(layout, watch):
            _copy(path, layout.kept / path.name)


def _copy(source: Path, target: Path) -> None:
    """Copy a sparse file; holes stay holes."""
    with source.open("rb") as file, target.open("wb") as out:
        for begin, end in data_of(file.fileno()):
            while begin < end and (piece := os.pread(file.fileno(), min(_PIECE, end - begin), begin)):
                os.pwrite(out.fileno(), piece, begin)
                begin += len(piece)
        out.truncate(os.fstat(file.fileno()).st_size)


def _environment(layout: Layout, watch: Watch) -> str:
    common: dict[str, str] | None = None
    ranks = watch.ranks() or list(watch.seen.values())
    if not ranks:
        raise _MissingError("no process was seen")
    for one in ranks:
        own = one.environment
        common = dict(own) if common is None else {k: v for k, v in common.items() if own.get(k) == v}
    document = {
        "schema": FACT,
        "common": masked(common or {}),
        "processes": {
            str(one.pid): masked({k: v for k, v in one.environment.items() if (common or {}).get(k) != v})
            for one in ranks
        },
    }
    (layout.facts / "environment.json").write_text(json.dumps(document, indent=1) + "\n", errors="backslashreplace")
    return "facts/environment.json"


def _versions(layout: Layout, watch: Watch) -> str:
    out = [
        f"{FACT}: versions",
        f"kernel {platform.release()} {platform.machine()}",
        f"C library {' '.join(platform.libc_ver())}",
        f"Python of psmkit {sys.version.split()[0]}",
    ]
    for name in (
        "/etc/os-release",
        "/proc/driver/nvidia/version",
        "/proc/sys/kernel/yama/ptrace_scope",
        "/proc/meminfo",
    ):
        with contextlib.suppress(OSError):
            out.append(f"== {name}\n{Path(name).read_text(errors='replace').rstrip()}")
    libraries: set[str] = set()
    for one in watch.ranks(living=True) or watch.living:
        with contextlib.suppress(OSError), open(f"/proc/{one.pid}/maps", errors="replace") as maps:
            libraries.update(line.split(None, 5)[-1].strip() for line in maps if _LIBRARY.search(line.rstrip()))
    if libraries:
        out.append("== libraries\n" + "\n".join(f"{name} -> {os.path.realpath(name)}" for name in sorted(libraries)))
    path = layout.facts / "versions.txt"
    if path.exists() and not libraries:  # an earlier look saw more
        return ""
    path.write_text("\n".join(out) + "\n", errors="backslashreplace")
    return "facts/versions.txt"


def kernel_lines(layout: Layout, since: float, pids: Collection[int]) -> str:
    """Copy the kernel's lines from the start of the job on: those that name its processes or none to the logs, all to the facts.

    Older lines, and lines about other processes, are about other jobs.
    """
    dmesg = shutil.which("dmesg")
    if dmesg is None:
        raise _MissingError("there is no dmesg on the path")
    done = subprocess.run(
        [dmesg, "--raw"], capture_output=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise _MissingError(words[-1] if words else f"dmesg ended with status {done.returncode}")
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    recent = []
    for line in done.stdout.decode(errors="replace").splitlines():
        stamp = _KERNEL.match(line)
        if stamp is not None and boot + float(stamp[1]) >= since - 1:
            recent.append(line.partition(">")[2])
    if not recent:
        return ""
    (layout.facts / "kernel.txt").write_text(f"{FACT}: lines of the kernel\n" + "\n".join(recent) + "\n")
    kept = [line for line in recent if _is_ours(line, pids)]
    if not kept:
        return "facts/kernel.txt"
    (layout.copied / "kernel.log").write_text("\n".join(kept) + "\n")
    return "copied/kernel.log"


def _is_ours(line: str, pids: Collection[int]) -> bool:
    named = {int(number) for pair in _PIDS.findall(line) for number in pair if number}
    return not named or not named.isdisjoint(pids)


def _tool(layout: Layout, what: str, command: Sequence[str]) -> str:
    path = shutil.which(command[0])
    if path is None:
        raise _MissingError(f"there is no {command[0]} on the path")
    try:
        done = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _MissingError(f"{command[0]} did not end within {_PATIENCE:g} s") from None
    text = f"{FACT}: {' '.join(command)}\n{done.stdout.decode(errors='replace')}"
    (layout.facts / f"{what}.txt").write_text(text, errors="backslashreplace")
    return f"facts/{what}.txt"
