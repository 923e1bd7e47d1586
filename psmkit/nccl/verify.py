"""What a libnccl.so holds of libpsm's transport, and two ranks that use it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from psmkit.lab import elf, nccl, nccl_library
from psmkit.lab.emulation import Emulation
from psmkit.nccl.prepare import RECORD, headers_of

__all__ = ["Check", "inspect", "run"]

_HOOKS = ("psmSelect", "psmTakePart", "psmLaunch", "psmRegister", "psmDeregister")
_OURS = "_ZN3psm11proxy_setup"
_CONNECTED = re.compile(r" via (PSM_P2P/\S+|PSM_P2P.*)")


@dataclass(frozen=True)
class Check:
    """One check: its state is ``ok``, ``failed`` or ``unproven``."""

    state: str
    what: str
    text: str


def inspect(place: Path, prepared: Path | None) -> list[Check]:
    """What can be said of the file without running it.

    Raises:
        LabError: it is no NCCL library, or cannot run on emulated CUDA.
    """
    library = nccl_library.find(place)
    binary = elf.read(library.path)
    checks = [Check("ok", "library", f"{library.path}: NCCL {library.version}, CUDA runtime {library.cudart}")]
    psm = [name for name in binary.needed if name.startswith("libpsm.so")]
    if psm:
        checks.append(Check("ok", "libpsm", f"it needs {psm[0]}"))
    else:
        checks.append(
            Check("failed", "libpsm", "it does not need libpsm.so: -lpsm is missing in the link of libnccl.so")
        )
    checks.append(_linked(binary.symbols))
    checks.append(_layouts(library, prepared or _found(library.path)))
    return checks


def _linked(names: frozenset[str]) -> Check:
    if not names:
        return Check("unproven", "transport", "the library is stripped: it does not say what is linked in")
    if "psmP2pTransport" not in names:
        return Check(
            "failed",
            "transport",
            "psmP2pTransport is not linked in: no edit names it, or libpsm_nccl.a is missing in the link",
        )
    if not any(name.startswith(_OURS) for name in names):
        return Check(
            "failed", "transport", "psmP2pTransport is the fork's own: leave its transport/psm_p2p.o out of the link"
        )
    hooks = [name for name in _HOOKS if any(re.match(rf"_Z\d+{name}P", found) for found in names)]
    about = f"with the hooks of a plain tree ({', '.join(hooks)})" if hooks else "with the hooks of the fork"
    return Check("ok", "transport", f"psmkit's psmP2pTransport is linked in, {about}")


def _found(path: Path) -> Path | None:
    return next((folder for folder in path.resolve().parents if (folder / RECORD).exists()), None)


def _layouts(library: nccl_library.Library, prepared: Path | None) -> Check:
    if prepared is None or not (prepared / RECORD).exists():
        return Check(
            "unproven", "layouts", f"no {RECORD} of `psmkit nccl prepare` is above the library: give --prepared DIR"
        )
    record = json.loads((prepared / RECORD).read_text())
    if not library.version.startswith(record["release"]):
        return Check(
            "failed",
            "layouts",
            f"psmkit's part was compiled for NCCL {record['release']}, the library is {library.version}",
        )
    try:
        same = headers_of(prepared) == record["headers"]
    except OSError as error:
        return Check("unproven", "layouts", f"{error.filename} cannot be read: {error.strerror}")
    if not same:
        return Check(
            "failed",
            "layouts",
            f"headers in {prepared} have changed since psmkit's part was compiled: prepare the tree again",
        )
    return Check(
        "ok",
        "layouts",
        f"psmkit's part was compiled for NCCL {record['release']} with the headers that are in {prepared} now",
    )


def run(place: Path, folder: Path, deadline: float) -> list[Check]:
    """Two ranks send each other data through the transport, on emulated CUDA.

    Raises:
        LabError: the run could not start.
    """
    library = nccl_library.find(place)
    cases = [nccl.NcclCase(name=str(i), size=size, seed=i + 1) for i, size in enumerate((1, 65536, (4 << 20) + 3))]
    done = nccl.start(
        library,
        cases,
        2,
        folder,
        deadline=deadline,
        emulation=Emulation(folder, leaks=True),
        environment={"NCCL_PASS_SM": "1"},
    )
    outcome = done.outcome
    checked = sum(int(report.get("bytes", 0)) for rank in outcome.ranks for report in rank.reports)
    if outcome.good:
        checks = [Check("ok", "2 ranks", f"{checked} bytes arrived, and each is right")]
    else:
        why = "; ".join(
            f"rank {rank.rank}: {rank.state}, {rank.trouble or rank.text or rank.stage}" for rank in outcome.ranks
        )
        checks = [Check("failed", "2 ranks", f"{why}; see --out DIR and `psmkit analyze DIR/logs`")]
    return [*checks, _used(folder)]


def _used(folder: Path) -> Check:
    by_rank = []
    for rank in range(2):
        log = folder / "logs" / f"rank-{rank}.log"
        found = _CONNECTED.findall(log.read_text(errors="replace")) if log.exists() else []
        by_rank.append(found)
    if not all(by_rank):
        return Check(
            "failed", "transport used", "the logs name no connection via PSM_P2P: the edits in transport.cc are missing"
        )
    return Check("ok", "transport used", f"{sum(map(len, by_rank))} connections via {by_rank[0][0]} in the logs")
