"""Write the parts of a wheel as CycloneDX: sbom.py OUTPUT. What it contains beside psmkit's own files, and what it needs where it runs."""

from __future__ import annotations

import re
import sys
import tomllib
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]

#: What the compiler and cffi put into the libraries: name, the package whose version it has, licence, what it is.
BUILT_IN = (
    ("cffi", "cffi", "MIT-0", "the glue between C and Python in psmkit/_native"),
    ("compiler-rt", "ziglang", "MIT", "the compiler's own functions, as zig has them"),
    ("glibc", None, "LGPL-2.1-or-later", "what a program begins with, and libc_nonshared.a"),
)
GLIBC = "2.28"  # as scripts/wheel.py links
_NOT_FOR_USERS = ("all", "test", "dev", "docs", "release")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _needed(name: str, entries: dict[str, list[str]]) -> Component:
    """A package that pip installs with the wheel or with an extra, in a version that pip chooses."""
    found = [
        Property(name="psmkit:requires" if not extra else f"psmkit:requires:{extra}", value=entry)
        for entry, extras in entries.items()
        for extra in extras
    ]
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        bom_ref=f"needed:{name}",
        purl=PackageURL("pypi", name=name),
        scope=ComponentScope.REQUIRED if any("" in extras for extras in entries.values()) else ComponentScope.OPTIONAL,
        properties=found,
    )


def document(config: dict[str, Any], installed: dict[str, str]) -> Bom:
    """The parts of the wheel that this pyproject.toml describes, built with these versions of its tools."""
    project = config["project"]
    # Package -> what is asked of it -> the extras that ask, "" for psmkit itself.
    asked: dict[str, dict[str, list[str]]] = {}
    for extra, entries in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for entry in entries if extra not in _NOT_FOR_USERS else ():
            asked.setdefault(_name(entry), {}).setdefault(entry, []).append(extra)
    root = Component(
        type=ComponentType.LIBRARY,
        name=project["name"],
        version=project["version"],
        bom_ref="psmkit",
        purl=PackageURL("pypi", name=project["name"], version=project["version"]),
        licenses=[LicenseExpression(project["license"])],
        description=project["description"],
    )
    bom = Bom(version=1)
    bom.metadata.component = root
    bom.metadata.timestamp = None  # type: ignore[assignment]  # the same parts make the same file
    parts = [
        Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=installed[package] if package else GLIBC,
            bom_ref=f"part:{name}",
            licenses=[LicenseExpression(licence)],
            description=f"part of the wheel: {what}",
        )
        for name, package, licence, what in BUILT_IN
    ]
    parts += [_needed(name, entries) for name, entries in asked.items()]
    bom.components = parts  # type: ignore[assignment]
    bom.dependencies = [  # type: ignore[assignment]
        Dependency(root.bom_ref, [Dependency(part.bom_ref) for part in parts]),
        *(Dependency(part.bom_ref) for part in parts),
    ]
    return bom


def text(config: dict[str, Any], installed: dict[str, str]) -> str:
    """The document as JSON: the same for the same parts."""
    bom = document(config, installed)
    bom.serial_number = uuid.UUID(int=0)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, JsonV1Dot6(bom).output_as_string())
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


if __name__ == "__main__":
    with (ROOT / "pyproject.toml").open("rb") as file:
        Path(sys.argv[1]).write_text(text(tomllib.load(file), {name: version(name) for name in ("cffi", "ziglang")}))
