"""``python -m tests.bank.record``: run the lab's faults and variants, and write tests/data/lab: the logs of each run and its truth.

Each fault at each site that a run comes to, in 2 ranks and in 4; each variant on two kinds of stream, with and without zero-copy; a rank that dies
or stops before a wrong variant can show its mistake; errors of each CUDA function that libpsm calls. The truth is what the fault or the variant
declares (psmkit.lab.declared) and what became of the ranks, never what an analysis says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psmkit
from psmkit.lab import declared, elf, matrix, runner, transfer
from psmkit.lab.emulation import Emulation
from psmkit.model import Verdict

__all__ = ["FOLDER", "main"]

FOLDER = Path(__file__).parents[1] / "data" / "lab"
_DEADLINE, _TIMEOUT, _STALL = (
    6.0,
    2.0,
    1.0,
)  # seconds of a run, of a wait of its control plane, and until a stall is reported
_TRIES = 3
#: Variants that leave a run as it is, or leak: what a fault shows, it shows on top of them.
_HARMLESS = {1: ("split", "shallow", "no-free"), 2: ("net/split", "net/no-free")}
#: Sites that no run of the lab comes to: `psmkit plan` does.
_ELSEWHERE = "plan."
#: What an analysis calls the stages of the lab.
_STAGES = {
    "init": ("init", "started", "bootstrap", "topology"),
    "setup": ("setup", "connect", "proxy *"),
    "connect": ("connect", "setup", "proxy *"),
    "register": ("register", "connect", "ready", "proxy *"),
    "move": ("move", "working", "send/recv", "data"),
    "free": ("free", "teardown", "done"),
    "stop": ("stop", "teardown", "done"),
}
#: The codes that may head the report of a fault; the first is the best.
_HEADS = {
    "stop": ("PSM304",),
    "kill": ("PSM402",),
    "hang": ("PSM304", "PSM307", "PSM101", "PSM102", "PSM107"),
    "error": ("PSM401", "PSM405", "PSM403", "PSM503", "PSM504", "PSM509"),
}


@dataclass(frozen=True)
class Run:
    """A run of the lab. ``rank`` and ``action`` are of its fault; ``ranks`` of the job."""

    name: str
    case: transfer.Case
    ranks: int = 2
    nodes: int = 1
    faults: str = ""
    rank: int | None = None
    action: str = ""

    @property
    def command(self) -> str:
        """What runs it, for a reader."""
        parts = [f"--ranks {self.ranks}", f"--nodes {self.nodes}" if self.nodes > 1 else ""]
        parts.append(f"--fault {self.faults}" if self.faults else "")
        usual = transfer.Case().line().split()
        return " ".join(part for part in (*parts, *self.case.line().split()) if part and part not in usual)


def _sites() -> list[elf.Site]:
    program = transfer.program()
    libraries = program.parents[1] / "lib"
    found = {site.name: site for b in (_plugin(), libraries / "libpsm.so", program) for site in elf.sites(b)}
    return list(found.values())


def _plugin() -> Path:
    return next(Path(psmkit.__file__).parent.rglob("libnccl-net-psm.so"))


def _number(text: str, of: int) -> int:
    return zlib.crc32(text.encode()) % of


def _strikes() -> Iterator[list[Run]]:
    """Each fault at each site. A list has the same fault in several ranks: the first that comes to the site is taken."""
    turns: dict[str, int] = {}
    plugin = {site.name for site in elf.sites(_plugin()) if site.name.startswith("net.")}
    for strike in matrix.strikes([site for site in _sites() if not site.name.startswith(_ELSEWHERE)]):
        if strike.site in plugin and strike.action.startswith("error="):
            strike = replace(strike, action="error=5")  # a result of NCCL's
        turn = turns.setdefault(strike.site, len(turns))
        kind = strike.action.replace("=", "-")
        calm = kind.startswith(("slow", "late"))
        # A fault that only takes time is the same in each rank, and at its begin or its end.
        if calm and (kind[:4], strike.rank) != (("slow", "late")[turn % 2], turn // 2 % 2):
            continue
        case = strike.case
        yield [
            Run(
                f"{strike.site}/{kind}-r{strike.rank}-n2",
                case,
                2,
                strike.nodes,
                strike.text,
                strike.rank,
                strike.action,
            )
        ]
        if strike.rank and not calm:
            continue
        # The wrong struct has no room in an answer where memory is shared by name.
        variants = tuple(v for v in _HARMLESS[strike.nodes] if case.share != "posix" or v != "shallow")
        case = replace(case, pattern="ring", variant=variants[_number(f"{strike.site} {kind}", len(variants))])
        first = _number(strike.text, 4)
        runs = []
        for rank in ((first + i) % 4 for i in range(4)):
            text = replace(strike, rank=rank).text
            name = f"{strike.site}/{kind}-n4-{case.variant.rpartition('/')[2]}"
            runs.append(Run(name, case, 4, strike.nodes, text, rank, strike.action))
        yield runs


def _variants() -> Iterator[list[Run]]:
    ways = list(itertools.product((2, 4), ("legacy", "nonblocking"), ("never", "registered")))
    for variant in transfer.variants().values():
        nodes = 2 if variant.name.startswith("net/") else 1
        base = transfer.Case(size=1 << 20, iters=4, variant=variant.name)
        for ranks, stream, zero_copy in ways:
            case = replace(base, app_stream=stream, zero_copy=zero_copy, pattern="pair" if ranks == 2 else "ring")
            yield [Run(f"variant-{variant.name.replace('/', '-')}/{stream}-{zero_copy}-n{ranks}", case, ranks, nodes)]
        if variant.wrong and not variant.faults:
            for action, rank in (("kill", 0), ("kill=SIGSTOP", 1)):
                text = f"lab.stage:{action},rank={rank},nth=1"
                name = f"variant-{variant.name.replace('/', '-')}/{action.replace('=', '-')}-r{rank}-n2"
                yield [Run(name, base, 2, nodes, text, rank, action)]


def _cuda() -> Iterator[list[Run]]:
    """Errors of each CUDA function that a run calls."""
    with tempfile.TemporaryDirectory(prefix="psm-bank-") as folder:
        emulation = Emulation(Path(folder) / "run" / "records")
        transfer.start([transfer.Case()], 2, Path(folder) / "run", emulation=emulation)
        called = sorted({c.function for c in emulation.calls() if c.library == "libcudart"})
    for function in called:
        for action, rank in (("error=700", 0), ("hang", 1)):
            text = f"{function}:{action},rank={rank},nth=1"
            yield [Run(f"cuda/{function}-{action.replace('=', '-')}", transfer.Case(), 2, 1, text, rank, action)]


def _differences() -> Iterator[list[Run]]:
    for site, action in (("lab.stage", "kill"), ("lab.stage", _STOP), ("lab.stage", "hang"), ("lab.stage", "error=5")):
        for stage, ranks in itertools.product(("setup", "connect", "move", "free", "stop"), (2, 4)):
            rank = _number(f"{action} {stage}", ranks)
            text = f"{site}:{action},rank={rank},op={stage},nth=1"
            case = transfer.Case(pattern="ring" if ranks == 4 else "pair")
            name = f"{site}/{action.replace('=', '-')}-{stage}-n{ranks}"
            yield [Run(name, case, ranks, 1, text, rank, action)]


_STOP = "kill=SIGSTOP"


def _all() -> list[list[Run]]:
    return [*_strikes(), *_variants(), *_cuda(), *_differences()]


def _well(outcome: runner.Outcome) -> bool:
    """Whether each rank did its work; what a variant leaves behind is reported at the end, as a failure."""
    return all(rank.state == "good" or (rank.failure or {}).get("by") == "left" for rank in outcome.ranks)


def _truth(run: Run, done: transfer.LabRun) -> dict[str, Any]:
    """What happened, as a row of truth.toml."""
    states = [rank.state for rank in done.outcome.ranks]
    # Where a wait of the control plane has ended at its deadline, both words are right.
    ended = {"failed", "died"} & set(states)
    told = any(rank.trouble for rank in done.outcome.ranks)
    trouble = ["failed", "hung"] if ended else ["hung", "failed"] if told else ["hung"]
    variant = transfer.variants()[run.case.variant]
    shown = declared.of_variant(variant, run.case, done.outcome.good)
    leaks = Verdict.LEAKING in shown.verdicts
    if not run.faults or variant.faults:
        verdict = next(iter(shown.verdicts)).value
        row: dict[str, Any] = {"verdicts": [verdict]}
        if verdict in ("failed", "hung"):
            # It runs on all ranks: each may be named.
            row |= {"culprits": list(range(run.ranks))}
        return row | {"codes": sorted(shown.codes)} if shown.codes and verdict != "healthy" else row
    if _well(done.outcome):
        return {"verdicts": ["leaking"], "codes": ["PSM505"]} if leaks else {"verdicts": ["healthy"]}
    action = "stop" if run.action == _STOP else run.action.partition("=")[0]
    assert action not in ("slow", "late"), f"{run.name}: a fault that only takes time broke the run"
    if action == "stop":
        trouble = ["hung"]
    elif action in ("kill", "error"):
        trouble = ["failed"]
    assert run.rank is not None
    row = {"verdicts": trouble, "culprits": [run.rank]}
    if action in _HEADS:
        row |= {"codes": list(_HEADS[action]), "named": True}
        # A rank whose call has ended at its deadline goes on to its end.
        if action != "error" and not done.outcome.ranks[run.rank].trouble:
            row |= {"stages": list(_STAGES[done.outcome.ranks[run.rank].stage])}
    return row


def _record(chain: list[Run], out: Path) -> tuple[str, dict[str, Any]] | None:
    """Run the first of these that its fault strikes, and keep its logs."""
    for run in chain:
        for _ in range(_TRIES):
            with tempfile.TemporaryDirectory(prefix="psm-bank-") as temporary:
                folder = Path(temporary) / "run"
                emulation = Emulation(folder / "records", faults=run.faults, stall_report=_STALL, leaks=True)
                case = replace(run.case, timeout_ms=round(_TIMEOUT * 1000), stall_report_ms=round(_STALL * 1000))
                done = transfer.start(
                    [case], run.ranks, folder, deadline=_DEADLINE, emulation=emulation, nodes=run.nodes, stacks=False
                )
                struck = done.struck()
                calm = run.action.partition("=")[0] in ("slow", "late")
                well = _well(done.outcome)
                if run.faults and not struck and well:
                    break
                if (calm or (run.faults and not struck)) and not well:
                    continue  # the machine was busy
                truth = _truth(run, done)
                for part in ("logs", "output"):
                    for file in sorted((folder / part).iterdir()):
                        if file.is_file() and file.stat().st_size:
                            target = out / run.name / part / file.name
                            target.parent.mkdir(parents=True, exist_ok=True)
                            target.write_bytes(_plain(file.read_bytes(), temporary))
                states = " ".join(rank.state for rank in done.outcome.ranks)
                return run.name, {"run": run.command, "ends": states, **truth}
    return None


def _plain(data: bytes, temporary: str) -> bytes:
    """A log without the folders of the machine that wrote it."""
    root = str(Path(psmkit.__file__).parents[1])
    return data.replace(root.encode(), b"/opt/psmkit").replace(temporary.encode(), b"/tmp/lab")


def _reset(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def _kept(pair: tuple[list[Run], Path]) -> tuple[str, dict[str, Any]] | None:
    try:
        return _record(*pair)
    except (KeyError, AssertionError) as error:
        print(f"left out: {pair[0][0].name}: {error!r}", flush=True)
        return None


def _old(out: Path, again: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Unpack the runs that were not made again, and give their rows. A run whose name the bank has no more goes."""
    rows = tomllib.loads((FOLDER / "truth.toml").read_text())
    kept = {name: row for name, row in rows.items() if not any(part in name for part in again)}
    with tarfile.open(FOLDER / "runs.tar.xz") as archive:
        members = [m for m in archive if m.isfile() and m.name.split("/logs/")[0].split("/output/")[0] in kept]
        archive.extractall(out, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return kept


_HEAD = """\
# What happened in each run of runs.tar.xz: the fault or the wrong variant as it is declared, and how the ranks ended. Written by `python -m
# tests.bank.record`. `run` made it; `ends`: the ranks; `verdicts`: the first is the best; `culprits`: nobody else may be blamed, `named`: one has to be;
# `codes` may head the report; `stages` are those of the culprit.
"""


def main() -> None:
    """Run all, and write the archive and truth.toml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        default="",
        help="run those again whose name contains one of these, NAME[,NAME...], and keep the others",
    )
    parser.add_argument("--processes", type=int, default=8)
    given = parser.parse_args()
    chosen = [chain for chain in _all() if any(name in chain[0].name for name in given.only.split(","))]
    with tempfile.TemporaryDirectory(prefix="psm-bank-") as made:
        out = Path(made)
        with ProcessPoolExecutor(given.processes) as executor:
            kept = list(executor.map(_kept, [(chain, out) for chain in chosen]))
        rows = dict(sorted(row for row in kept if row))
        for chain, row in zip(chosen, kept, strict=True):
            if row is None:
                print(f"not reached: {chain[0].name}")
        if given.only:
            again = tuple(given.only.split(","))
            rows = dict(sorted((_old(out, again) | rows).items()))
        text = _HEAD + "".join(
            f'\n["{name}"]\n' + "".join(f"{key} = {json.dumps(value)}\n" for key, value in row.items())
            for name, row in rows.items()
        )
        FOLDER.mkdir(parents=True, exist_ok=True)
        packed = FOLDER / "runs.tar.xz"
        part = packed.with_suffix(".part")
        # The runs are alike: a window over all of them.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
        with (
            lzma.open(part, "wb", filters=filters) as file,
            tarfile.open(fileobj=file, mode="w|") as archive,
        ):
            for name in rows:
                archive.add(out / name, name, filter=_reset)
        (FOLDER / "truth.toml").write_text(text)
        part.replace(packed)
    print(f"{len(rows)} runs in {FOLDER}")


if __name__ == "__main__":
    main()
