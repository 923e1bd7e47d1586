"""The variants of the transport that the lab can run, and what they declare."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psmkit.lab import programs
from psmkit.lab.cuda import LabError
from psmkit.model.symptoms import Symptoms

__all__ = ["Variant", "program", "rows", "variant_of", "variants"]


def program() -> Path:
    """The rank program of ``psmkit lab run``. PSM_DIR names another build.

    Raises:
        LabError: it was not built.
    """
    return programs.find("psm_rank")


_UNDECLARED = Symptoms()


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the transport as libpsm has it.

    Args:
        name: those of the net transport begin with ``net/``.
        summary: what it does, and of a wrong one its mistake.
        outcome: what a run of a wrong one shows, for people.
        wrong: it makes a mistake on purpose.
        faults: those that make its mistake.
        symptoms: what a run shows, as typed fields.
        row: what it was made of, for result.json.
    """

    name: str
    summary: str
    outcome: str
    wrong: bool
    faults: str
    symptoms: Symptoms = _UNDECLARED
    row: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def variants() -> dict[str, Variant]:
    """The variants that libpsm has, by name.

    Raises:
        LabError: the rank program was not built, or cannot be run.
    """
    command = [str(program()), "variants"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"{' '.join(command)}: {error}") from None
    found = [variant_of(row) for row in rows(done.stdout.splitlines(), command)]
    return {variant.name: variant for variant in found}


def rows(lines: Iterable[str], command: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of ``psm_rank variants``.

    Raises:
        LabError: they are none.
    """
    try:
        return [dict(json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise LabError(f"{' '.join(command)}: {error}") from None


def variant_of(row: Mapping[str, Any]) -> Variant:
    """The variant of a line of ``psm_rank variants``."""
    return Variant(
        row["name"], row["summary"], row["outcome"], bool(row["wrong"]), row["faults"], _symptoms(row), dict(row)
    )


def _symptoms(row: Mapping[str, Any]) -> Symptoms:
    names = ("verdict", "codes", "status", "shows", "leaves")
    return Symptoms.of_c(*(row[name] for name in names)) if "verdict" in row else Symptoms.of_sentence(row["outcome"])
