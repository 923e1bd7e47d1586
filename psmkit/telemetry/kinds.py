"""The kinds of a profiler's events, from the facts about NCCL's plugin tables (psmkit/plugins/abi.json)."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

__all__ = ["DEFAULT", "EVENT_TYPES", "OWN_ROWS", "TIME", "WORD"]

TIME, WORD = "time", "word"
_Rows = dict[int, tuple[tuple[str, str], ...]]


def _word(name: str) -> str:
    return re.sub(r"(?<=.)(?=[A-Z])", "_", name.removesuffix("Plugin")).lower()


def _row(facts: Any, kind: Any) -> tuple[tuple[str, str], ...]:
    """The members of a row that psm_abi_rows.h declares, each with its type: that of a field, time, or FUNC, DATATYPE, ALGO, PROTO."""
    out = []
    for member, source in kind.get("keeps", {}).items():
        if isinstance(source, list) or source in facts["profiler_states"]:
            out.append((member, TIME))
        elif not member.isupper():
            part = "profiler_args" if source.startswith("args.") else "profiler_fields"
            field = facts[part][source.removeprefix("args.")]
            # A string of which the plugin knows the names is called by them.
            out.append((member, str(field.get("kept", WORD) if field["type"] == WORD else field["type"])))
    return tuple(out)


def _kinds() -> tuple[tuple[str, ...], int, _Rows]:
    """The names by the number of their bit, the bits that the plugin asks for by default, and the rows that only the facts describe."""
    facts = json.loads(resources.files("psmkit").joinpath("plugins", "abi.json").read_text("utf-8"))
    kinds = facts["profiler_kinds"]
    bits = facts["enums"]["(unnamed) profiler event type bits"][-1][2]
    names = sorted(kinds, key=lambda name: int(bits[f"ncclProfile{name}"]))
    default = sum(1 << at for at, name in enumerate(names) if kinds[name].get("default", True))
    rows = {at: _row(facts, kinds[name]) for at, name in enumerate(names) if "row" not in kinds[name]}
    return tuple(map(_word, names)), default, {at: row for at, row in rows.items() if row}


EVENT_TYPES, DEFAULT, OWN_ROWS = _kinds()
