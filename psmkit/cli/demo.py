"""``psmkit demo``: Show a hang that the log proves, ranks that work, and ranks that hang."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from psmkit.cli.command import Command
from psmkit.cli.config import examples, logs
from psmkit.model.errors import PsmkitError

__all__ = ["command"]


class _DemoError(PsmkitError):
    pass


def _steps(out: Path) -> list[list[str]]:
    # The mistake of the hang is that of the 8-GPU log: the proxy copies on the stream handle that the peer sent, and these copies wait for the application.
    alltoall = ["lab", "run", "--ranks", "4", "--pattern", "alltoall"]
    mistake = ["--variant", "whole-struct-zero", "--app-stream", "legacy"]
    return [
        ["analyze", str(logs() / "fault_a2_n4_sigstop_rank1_in_setup")],
        ["analyze", str(logs() / "passsm-8gpu.log")],
        [*alltoall, "--size", "4M", "--out", str(out / "good")],
        [*alltoall, "--size", "1M", *mistake, "--deadline", "5", "--out", str(out / "hang")],
        ["analyze", str(out / "hang")],
        ["conformance", f"{examples() / 'my_transport.py'}:careless"],
    ]


@click.command("demo", cls=Command, examples=("psmkit demo", "psmkit demo --out evidence"))
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep what the runs leave in this folder.")
def command(out: Path | None) -> int:
    """Show what psmkit does, on this machine, without a GPU: two minutes at most.

    It analyses the log of a real hang, which proves it, and the log of an 8-GPU hang that prints too little to prove one. Four ranks send each other data on emulated CUDA.
    Then they make the mistake of the 8-GPU log, and hang. Each command is shown before its output. `psmkit config --examples` prints where the examples are.

    Exit status: 0 all steps ran; 2 one could not.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise click.BadParameter(f"{out} is not empty: name a new folder", param_hint="--out")
    with tempfile.TemporaryDirectory(prefix="psmkit-demo-") as temporary:
        for words in _steps(out or Path(temporary)):
            click.echo(f"\n$ psmkit {' '.join(words)}")
            done = subprocess.run([sys.executable, "-m", "psmkit", *words], stdin=subprocess.DEVNULL, check=False)
            if done.returncode not in (0, 1, 3):  # findings are what the demo is about
                raise _DemoError(f"psmkit {words[0]} ended with status {done.returncode}")
    return 0
