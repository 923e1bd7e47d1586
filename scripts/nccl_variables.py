"""Write down which release of NCCL reads which environment variable: psmkit/live/machine/variables.toml.

    python scripts/nccl_variables.py NCCL.git

The folder is a git repository of NCCL with its tags. Only names and releases are taken, and whether NCCL_PARAM reads the variable: then it is
a number. A newer release adds a line or moves an end.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parents[1] / "psmkit/live/machine/variables.toml"
TAG = re.compile(r"v(2\.\d+\.\d+)-\d+")
OLDEST = (2, 8, 3)
READS = (
    (re.compile(r'\bNCCL_PARAM\(\s*\w+\s*,\s*"(\w+)"'), "NCCL_"),
    (re.compile(r'"(NCCL_[A-Z0-9_]+)"'), ""),  # an argument of getenv, or of what ends in it
    (re.compile(r"\bDEFINE_NCCL_PARAM\w*\(\s*\w+\s*,[^,]+,\s*(NCCL_[A-Z0-9_]+)"), ""),
)
# Strings of the sources that are no variables.
NONE = re.compile(r"NCCL_\w*(?:_|_INITIALIZER)$")
MARK = "# generated below by scripts/nccl_variables.py\n"


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def main() -> None:
    git = ["git", "-C", sys.argv[1]]
    tags: dict[str, str] = {}
    for tag in subprocess.run([*git, "tag"], capture_output=True, text=True, check=True).stdout.split():
        if (m := TAG.fullmatch(tag)) and number(m[1]) >= OLDEST:
            tags[m[1]] = tag
    releases = sorted(tags, key=number)
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    numbers: set[str] = set()
    for release in releases:
        command = [*git, "grep", "-hE", "NCCL_PARAM|NCCL_[A-Z]", tags[release], "--", "src/*.cc", "src/*.h", "src/*.cu"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for form, prefix in READS:
            for name in (prefix + m for m in form.findall(text)):
                if not NONE.match(name):
                    first.setdefault(name, release)
                    last[name] = release
                    if prefix:
                        numbers.add(name)
    kept = TARGET.read_text().partition(MARK)[0]
    lines = ["[releases]", f'newest = "{releases[-1]}"', "", "[nccl]"]
    for name in sorted(first):
        end = "" if last[name] == releases[-1] else last[name]
        kind = ', "number"' if name in numbers else ""
        lines.append(f'{name} = ["{first[name]}", "{end}"{kind}]')
    TARGET.write_text(kept + MARK + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
