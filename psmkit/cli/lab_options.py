"""Options that the commands of the lab share."""

from __future__ import annotations

import os

import click

__all__ = ["fault_option"]


def _faults(ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> str:
    # The lab sets the variable for its ranks: one of the shell would have no effect, and a run without a fault would pass for one with it.
    if os.environ.get("PSM_FAULTS", "").strip():
        raise click.UsageError(f"PSM_FAULTS is set; {ctx.command_path} takes --fault: unset PSM_FAULTS")
    if any(not value.replace(";", "").strip() for value in values):
        raise click.BadParameter("empty fault, expected SITE:ACTION[,rank=N,...]")
    return ";".join(values)


#: ``--fault``, repeatable: one text as PSM_FAULTS takes it.
fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="FAULT",
    callback=_faults,
    help="Inject a fault: SITE:ACTION[,rank=N,...], see docs/faults.md and `psmkit lab faults`. Repeatable.",
)
