"""The kinds of a profiler's events, from the facts about NCCL's plugin tables (psmkit/plugins/abi.json)."""

from __future__ import annotations

import json
import re
from importlib import resources

__all__ = ["DEFAULT", "EVENT_TYPES"]


def _kinds() -> tuple[tuple[str, ...], int]:
    """The names by the number of their bit, and the bits that the plugin asks for by default."""
    facts = json.loads(resources.files("psmkit").joinpath("plugins", "abi.json").read_text("utf-8"))
    kinds = facts["profiler_kinds"]
    bits = facts["enums"]["(unnamed) profiler event type bits"][-1][2]
    names = sorted(kinds, key=lambda name: int(bits[f"ncclProfile{name}"]))
    words = (re.sub(r"(?<=.)(?=[A-Z])", "_", name.removesuffix("Plugin")).lower() for name in names)
    default = sum(1 << at for at, name in enumerate(names) if kinds[name].get("default", True))
    return tuple(words), default


EVENT_TYPES, DEFAULT = _kinds()
