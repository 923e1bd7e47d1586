"""``psmkit variants``: List the variants of the transports, correct and broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_listing
from psmkit.model.errors import PsmkitError

if TYPE_CHECKING:
    from psmkit.transport import NetVariant, Variant

__all__ = ["command"]


class _NotBuiltError(PsmkitError):
    pass


@click.command("variants", cls=Command, examples=("psmkit variants", "psmkit variants --format json"))
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(form: str) -> None:
    """List the variants of the transports: the correct ones, and broken ones with their expected symptoms.

    `psmkit lab run --variant NAME` runs ranks with a variant. Variants of the net transport are named net/NAME and need `--nodes 2`.
    """
    try:
        from psmkit.transport import Leaves, Shows, net_variants, variants
    except ImportError as error:
        raise _NotBuiltError(
            f"no libpsm for this Python: build it with `make setup`, or install a psmkit wheel for this system ({error})"
        ) from None

    found: dict[str, Variant | NetVariant] = dict(variants())
    found |= {f"net/{name}": one for name, one in net_variants().items()}
    if form == "json":
        rows = [
            {
                "name": name,
                "wrong": v.wrong,
                "summary": v.summary,
                "code": v.code or None,
                "outcome": v.outcome.removeprefix(f"{v.code}:").strip(),
                "verdict": v.symptoms.verdict,
                "codes": list(v.symptoms.codes),
                "status": v.symptoms.status or None,
                "shows": [str(flag.name).lower() for flag in Shows if flag in v.symptoms.shows],
                "leaves": [str(flag.name).lower() for flag in Leaves if flag in v.symptoms.leaves],
                "faults": v.faults or None,
            }
            for name, v in found.items()
        ]
        show(json.dumps(rows, indent=2) + "\n")
        return
    head = ["name", "", "verdict", "finding", "what it does", "symptoms"]
    table = [
        [
            name,
            "wrong" if v.wrong else "right",
            v.symptoms.verdict or "-",
            " ".join(v.symptoms.codes) or "-",
            v.summary,
            v.outcome.removeprefix(f"{v.code}:").strip() or "-",
        ]
        for name, v in found.items()
    ]
    show_listing(head, table, texts=2)
