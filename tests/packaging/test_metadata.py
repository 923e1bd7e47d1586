"""What a registry shows of psmkit, and the list of parts that goes with the wheel."""

from __future__ import annotations

import json
import re
import tomllib
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts import sbom, wheel

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOLS = {"cffi": "2.0.0", "ziglang": "0.17.1"}


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.text(CONFIG, TOOLS))
    return found


def test_links_of_the_readme_are_absolute_where_it_is_shown_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import scikit_build_core.build as backend

    monkeypatch.chdir(ROOT)
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path))
    shown = Parser().parsestr((tmp_path / name / "METADATA").read_text("utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", str(shown.get_payload()))
    source = CONFIG["project"]["urls"]["Source"]
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    ours = [link for link in links if link.startswith(source)]
    assert f"{source}/raw/v{CONFIG['project']['version']}/docs/pictures/report.png" in ours
    # Each leads to a file of this tree.
    files = [re.sub(rf"^{re.escape(source)}/(?:raw|blob)/v[^/]+/", "", link) for link in ours]
    assert [name for name in files if not (ROOT / name.partition("#")[0]).exists()] == []
    assert {url.split(", ")[0] for url in shown.get_all("Project-URL") or []} == set(CONFIG["project"]["urls"])
    assert (tmp_path / name / "WHEEL").read_text().count("Tag: cp311-abi3-") == 1


def test_list_of_parts_is_valid_and_names_every_dependency(parts: dict[str, Any]) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(parts)) is None
    needed = {c["name"]: c for c in parts["components"] if c["bom-ref"].startswith("needed:")}
    required = {name for name, c in needed.items() if c["scope"] == "required"}
    assert required == {re.split(r"[<>=]", entry)[0] for entry in CONFIG["project"]["dependencies"]}
    wanted = {"psmkit:requires:query": "pyarrow>=20", "psmkit:requires:telemetry": "pyarrow>=15"}
    assert {p["name"]: p["value"] for p in needed["pyarrow"]["properties"]} == wanted
    assert not {"pytest", "ruff", "ziglang"} & set(needed)


def test_list_of_parts_names_what_is_linked_into_the_libraries(parts: dict[str, Any]) -> None:
    built_in = {c["name"]: c for c in parts["components"] if c["bom-ref"].startswith("part:")}
    assert {name: c["version"] for name, c in built_in.items()} == {
        "cffi": "2.0.0", "compiler-rt": "0.17.1", "glibc": wheel.GLIBC,
    }  # fmt: skip
    assert all(c["licenses"] for c in built_in.values())


def test_list_of_parts_is_the_same_for_the_same_parts() -> None:
    assert sbom.text(CONFIG, TOOLS) == sbom.text(CONFIG, TOOLS)
    assert sbom.text(CONFIG, TOOLS) != sbom.text(CONFIG, TOOLS | {"cffi": "2.0.1"})
