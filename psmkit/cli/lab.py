"""``psmkit lab``: Run ranks on emulated GPUs, and inject faults."""

from __future__ import annotations

import json
from pathlib import Path

import click

from psmkit.cli.command import Group
from psmkit.cli.lab_matrix import matrix
from psmkit.cli.lab_nccl import nccl
from psmkit.cli.lab_run import report, run
from psmkit.cli.lab_synth import synth
from psmkit.cli.output import check_output, show, show_listing
from psmkit.model.wording import counted

__all__ = ["command"]

_FORMAT = click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]"
)
_LIB = click.argument("lib", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group(
    "lab",
    cls=Group,
    examples=(
        "psmkit lab run --ranks 4 --pattern alltoall --out run1",
        "psmkit lab run --fault 'p2p.setup:error=ENOSPC,rank=0' --out run2",
    ),
)
def command() -> None:
    """Run ranks on emulated GPUs, on a machine without one, and inject faults."""


command.add_command(run)
command.add_command(report)
command.add_command(nccl)
command.add_command(matrix)
command.add_command(synth)


def _compute(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int]:
    major, dot, minor = value.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise click.BadParameter(f"{value!r}: expected a compute capability such as 9.0")
    return int(major), int(minor)


@command.command(
    "topology",
    examples=(
        "psmkit lab topology --gpus 4 --link pcie -o machine.toml",
        "psmkit lab topology --nodes 2 --nics 8 --xml topo.xml",
    ),
)
@click.option("--gpus", type=int, default=8, help="GPUs of a node.  [8]")
@click.option("--nodes", type=int, default=1, help="Nodes; PSM_NODE selects the node of a process.  [1]")
@click.option(
    "--link",
    type=click.Choice(("nvswitch", "nvlink", "pcie")),
    default="nvswitch",
    help="Link between the GPUs.  [nvswitch]",
)
@click.option("--compute", default="9.0", callback=_compute, help="Compute capability.  [9.0]")
@click.option("--memory", default="80 GiB", help="Memory that a GPU reports; it is not allocated.  [80 GiB]")
@click.option("--numa-nodes", type=int, default=1, help="NUMA nodes of a node; they share its GPUs.  [1]")
@click.option("--nics", type=int, default=0, help="Network cards of a node, for the XML.  [0]")
@click.option("--rdma", is_flag=True, help="Network cards reach the memory of GPUs.")
@click.option("-o", "--output", metavar="FILE", help="Write the TOML to FILE.  [standard output]")
@click.option("--xml", metavar="FILE", help="Also write the topology as XML for NCCL (NCCL_TOPO_FILE).")
def topology(
    gpus: int,
    nodes: int,
    link: str,
    compute: tuple[int, int],
    memory: str,
    numa_nodes: int,
    nics: int,
    rdma: bool,
    output: str | None,
    xml: str | None,
) -> None:
    """Write a topology for emulated CUDA (PSM_TOPOLOGY=FILE)."""
    from psmkit.lab.topology import LINKS, Machine

    kind = next(k for k in LINKS if k == link)
    machine = Machine(gpus, nodes, kind, compute, memory, numa_nodes, nics, rdma)
    check_output(output, "topology")
    check_output(xml, "topology XML")
    show(machine.toml(), output)
    if xml is not None:
        show(machine.xml(), xml)


@command.command(
    "cuda-coverage", examples=("psmkit lab cuda-coverage", "psmkit lab cuda-coverage build/lib/libnccl.so.2")
)
@_LIB
@_FORMAT
def cuda_coverage(lib: Path | None, form: str) -> int:
    """Show which CUDA functions emulated CUDA provides, or whether it provides those that LIB needs.

    LIB is any ELF file, such as a libnccl.so.

    Exit status: 0 nothing is missing; 1 LIB needs a function that emulated CUDA does not provide; 2 LIB cannot be read.
    """
    from psmkit.lab import coverage

    if lib is None:
        rows = coverage.areas()
        if form == "json":
            show(
                json.dumps(
                    [{"library": a.library, "area": a.area, "provided": a.provided, "known": a.known} for a in rows],
                    indent=2,
                )
                + "\n"
            )
        else:
            show_listing(
                ["library", "area", "provided", "known"],
                [[a.library, a.area, str(a.provided), str(a.known)] for a in rows],
                texts=0,
            )
        return 0
    needs = coverage.needs(lib)
    missing = [n for n in needs if not n.provided]
    if form == "json":
        data = {
            "library": str(lib),
            "needs": [{"name": n.name, "library": n.library, "how": n.how, "provided": n.provided} for n in needs],
        }
        show(json.dumps(data, indent=2) + "\n")
        return 1 if missing else 0
    linked = sum(n.how == "linked" for n in needs)
    show(
        f"{lib}: {counted(linked, 'CUDA function')} linked, {len(needs) - linked} looked up by name at run time; {len(missing)} missing\n\n"
    )
    if needs:
        # What is missing first: it is what the reader came for.
        order = sorted(needs, key=lambda n: (n.provided, n.how != "linked", n.library, n.name))
        show_listing(
            ["provided", "how", "library", "function"],
            [["yes" if n.provided else "no", n.how, n.library, n.name] for n in order],
            texts=0,
        )
    return 1 if missing else 0


@command.command(
    "faults",
    examples=("psmkit lab faults", "psmkit lab faults --format json", "psmkit lab faults build/lib/libnccl.so.2"),
)
@_LIB
@_FORMAT
def faults(lib: Path | None, form: str) -> None:
    """List the sites where PSM_FAULTS can inject a fault, and the actions of each.

    The sites are those of LIB; without LIB, those of libpsm, the net plugin, the rank programs and emulated CUDA. docs/faults.md has the
    grammar.
    """
    from psmkit.lab import elf
    from psmkit.lab import faults as known

    sites = known.sites() if lib is None else list(elf.sites(lib))
    if form == "json":
        rows = [{"site": s.name, "actions": list(s.actions), "description": s.description} for s in sites]
        show(json.dumps(rows, indent=2) + "\n")
    else:
        show_listing(
            ["site", "actions", "description"], [[s.name, " ".join(s.actions), s.description] for s in sites], texts=2
        )
