"""``psmkit lab synth``: logs of jobs of any size, and what there is to find in them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, show, show_listing

if TYPE_CHECKING:
    from psmkit.synth.large import Order

__all__ = ["synth"]


@click.command(
    "synth",
    cls=Command,
    examples=(
        "psmkit lab synth --ranks 1024 --bytes 2G --fault lag-at-work | psmkit analyze -",
        "psmkit lab synth --ranks 64 --fault setup-fails --dialect 2.30 -o job.log.gz --truth truth.toml",
        "psmkit lab synth --ranks 256 --bytes 1G --files rank -o logs",
        "psmkit lab synth --list",
    ),
)
@click.option("--ranks", type=click.IntRange(1, 1_000_000), default=8, help="Number of ranks.  [8]")
@click.option(
    "--nodes", type=click.IntRange(1, 1_000_000), help="Number of nodes; they share the ranks.  [one for 8 ranks]"
)
@click.option("--bytes", "size", metavar="SIZE", help="Size of the log: 4096, 64K, 4M, 100G.  [the least]")
@click.option("--fault", metavar="NAME", default="healthy", help="What happens to the job; see --list.  [healthy]")
@click.option("--dialect", metavar="RELEASE", default="2.27", help="Whose lines: 2.4 to 2.32, rccl, vccl.  [2.27]")
@click.option("--seed", type=int, default=1, help="Seed of the order of lines and of all numbers.  [1]")
@click.option("-o", "--output", metavar="FILE|DIR", help="Write to FILE, .gz or .zst to compress; with --files to DIR.")
@click.option("--files", "by", type=click.Choice(("rank", "node")), help="Write a file for each rank or node to DIR.")
@click.option("--pack", type=click.Choice(("gz", "zst")), help="Compress the files of --files.")
@click.option("--truth", metavar="FILE", help="Also write what there is to find: verdict, culprit, stage, codes.")
@click.option("--list", "listed", is_flag=True, help="List the faults and the dialects that know them.")
def synth(
    ranks: int,
    nodes: int | None,
    size: str | None,
    fault: str,
    dialect: str,
    seed: int,
    output: str | None,
    by: str | None,
    pack: str | None,
    truth: str | None,
    listed: bool,
) -> int:
    """Write the log of a job that never ran, of any size, with a known truth.

    The job starts, connects, works, in rounds of collectives and of buffers that ranks share, until the log has SIZE bytes, and then ends well
    or suffers the fault. The size is met to one line. The log goes to standard output if there is no -o. It takes the same memory whatever
    its size. The same options make the same log.

    --truth writes what `psmkit analyze` has to say, as TOML.

    Exit status: 0 the log is written; 2 there is no such log, or it cannot be written.
    """
    from psmkit.lab.transfer import size as bytes_of
    from psmkit.synth.large import Large, Order
    from psmkit.synth.output import truth_toml, write_file, write_folder

    if listed:
        _list()
        return 0
    name = "-" if output in (None, "-") else str(output)
    if by and name == "-":
        raise click.UsageError("--files needs -o DIR")
    if pack and not by:
        raise click.UsageError("--pack is for --files; a single FILE is compressed if its name ends in .gz or .zst")
    if pack == "zst" or name.endswith(".zst"):
        import zstandard  # noqa: F401 (before the work: the error names the extra)
    check_output(truth, "truth")
    if not by and name != "-":
        check_output(name, "log")
    order = Order(ranks, fault, dialect, bytes_of(size) if size else None, nodes, seed)
    large = Large(order)
    if truth:
        show(truth_toml(large, Path(name).name if name != "-" else "-", _command(order), not by), truth)
    if by:
        folder = Path(name)
        _empty(folder)
        write_folder(folder, large, by, f".{pack}" if pack else "")
    elif name == "-":
        for piece in large.stream():
            sys.stdout.buffer.write(piece.data)
    else:
        write_file(Path(name), large.stream())
    return 0


def _command(order: Order) -> list[str]:
    """What makes the same log."""
    words = ["psmkit", "lab", "synth", "--ranks", str(order.ranks), "--fault", order.fault, "--dialect", order.dialect]
    if order.size is not None:
        words += ["--bytes", str(order.size)]
    if order.nodes is not None:
        words += ["--nodes", str(order.nodes)]
    return [*words, "--seed", str(order.seed)]


def _empty(folder: Path) -> None:
    """Create a folder, or take an empty one."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(f"{folder} is not an empty folder: name a new one, to keep the files of two jobs apart")
    folder.mkdir(parents=True, exist_ok=True)


def _list() -> None:
    from psmkit.synth.dialects import DIALECTS
    from psmkit.synth.large import FAULTS, shown_dialects
    from psmkit.synth.scenarios import SCENARIOS

    def dialects(names: Iterable[str]) -> str:
        found = shown_dialects(names)
        return "all" if len(found) == len(DIALECTS) else " ".join(found)

    rows = []
    for fault, name in FAULTS.items():
        scenario = SCENARIOS[name]
        known = [d.name for d in DIALECTS.values() if scenario.covers(d) or fault == "healthy"]
        truth = scenario.truth
        rows.append([fault, truth.verdicts[0], " ".join(truth.codes[:1]), dialects(known)])
    show_listing(["fault", "verdict", "code", "dialects"], rows)
