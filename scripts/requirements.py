"""Print pip requirements for extras of pyproject.toml, so that versions are listed in one place.

    requirements.py [build] [EXTRA...]

``build`` stands for the build requirements. psmkit itself is not printed, because the Makefile installs it from the tree.
"""

from __future__ import annotations

import re
import sys
import tomllib


def requirements(config: dict, names: list[str]) -> list[str]:
    extras = config["project"]["optional-dependencies"]
    found: dict[str, None] = dict.fromkeys(config["project"]["dependencies"])
    todo = list(names)
    while todo:
        name = todo.pop(0)
        entries = config["build-system"]["requires"] if name == "build" else extras[name]
        for entry in entries:
            own = re.fullmatch(r"psmkit\[(.*)\]", entry)
            if own:
                todo += own[1].split(",")
            else:
                found[entry] = None
    return list(found)


if __name__ == "__main__":
    with open("pyproject.toml", "rb") as file:
        print("\n".join(requirements(tomllib.load(file), sys.argv[1:])))
