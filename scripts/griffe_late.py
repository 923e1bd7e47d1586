"""For the reference pages: griffe takes a class of psmkit.model.late for the data class that it is.

It knows data classes by the path of their decorator.
"""

from __future__ import annotations

from typing import Any

import griffe

_OURS, _MEANT = "psmkit.model.late.dataclass", "dataclasses.dataclass"


class Late(griffe.Extension):
    """Runs before griffe's own extension for data classes."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let the name that modules import be the standard one."""
        for module in pkg.modules.values():
            if not module.is_alias:
                self.on_package(pkg=module)
        name = pkg.members.get("dataclass")
        if isinstance(name, griffe.Alias) and name.target_path == _OURS:
            name.target_path = _MEANT
