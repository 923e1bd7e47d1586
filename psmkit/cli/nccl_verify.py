"""``psmkit nccl verify``: what a library holds of the transport, and whether it works."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from psmkit.cli.command import Command

__all__ = ["command"]


@click.command(
    "verify",
    cls=Command,
    examples=(
        "psmkit nccl verify with-psm/build/lib/libnccl.so.2",
        "psmkit nccl verify libnccl.so.2 --prepared with-psm --out run1",
    ),
)
@click.argument("library", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--prepared",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of `psmkit nccl prepare`.  [found above LIBRARY]",
)
@click.option("--no-run", is_flag=True, help="Only look into the file.")
@click.option("--deadline", type=click.FloatRange(1), default=120.0, metavar="SECONDS", help="For the run.  [120]")
@click.option("--out", "folder", type=click.Path(path_type=Path), help="Keep the evidence of the run in this folder.")
def command(library: Path, prepared: Path | None, no_run: bool, deadline: float, folder: Path | None) -> int:
    """Check a libnccl.so that is linked with libpsm's transport.

    It shows which parts of the transport are linked in, and whether the headers are still those that psmkit's part was compiled with. Then two
    ranks send each other data over emulated CUDA; every byte is compared, and the logs must name the transport. Exit status: 0 all checks
    passed; 1 one failed; 2 the library cannot be checked; 3 nothing failed, but something could not be proven.
    """
    from psmkit.nccl import verify as work

    checks = work.inspect(library, prepared)
    if not no_run and not any(check.state == "failed" for check in checks):
        with tempfile.TemporaryDirectory(prefix="psmkit-verify-") as temporary:
            checks += work.run(library, folder or Path(temporary) / "run", deadline)
    width = max(len(check.what) for check in checks)
    for check in checks:
        click.echo(f"{check.state:<8} {check.what:<{width}}  {check.text}")
    states = {check.state for check in checks}
    return 1 if "failed" in states else 3 if "unproven" in states else 0
