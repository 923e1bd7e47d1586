"""The audit of libpsm's own sources: nothing on what is right, and of the broken variants what docs/audit.md says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from psmkit.audit import Audit, audit_structs
from psmkit.audit.contract import ContractAudit, audit_contract
from psmkit.lab import transfer
from tests.csrc.psm import ground
from tests.psm.conftest import debuggable, generated  # noqa: F401 - a fixture

DOC = ground.ROOT / "docs" / "audit.md"
_BARE = re.compile(r"(.+) \((.+)\)")


def _sources(generated: Path) -> tuple[list[Path], str]:  # noqa: F811
    sources = [path for folder in ("p2p", "net", "conn") for path in sorted((ground.PSM / folder).rglob("*.c"))]
    return sources, shlex.join([*ground.includes(generated), "-std=gnu11", "-D_GNU_SOURCE"])


@pytest.fixture(scope="module")
def audit(generated: Path) -> Audit:  # noqa: F811
    sources, flags = _sources(generated)
    return audit_structs(sources, flags=flags)


def test_each_variant_breaks_the_contract_that_the_page_says(generated: Path) -> None:  # noqa: F811
    sources, flags = _sources(generated)
    rows = re.findall(
        r"^\| (p2p|net) `([\w-]+)` \| (.+?) \|$", DOC.read_text().partition("| variant | contract |")[2], re.M
    )
    found = audit_contract(sources, flags=flags)
    said = {name: ", ".join(sorted(set(re.findall(r"PSM\d+", words)))) for name, words in _found(found).items()}
    assert said == {f"{transport} {name}": words for transport, name, words in rows}
    places = {index for _, some in found.entries for index in some}
    assert places == set(range(len(found.findings)))  # what is right leads to nothing


def _found(audit: Audit | ContractAudit) -> dict[str, str]:
    """Codes and levels of what each variant leads to, by ``transport name``."""
    found = {}
    for entry, some in audit.entries:
        name, file = _BARE.fullmatch(entry).groups()  # type: ignore[union-attr]
        path = next(iter(ground.PSM.glob(f"*/variants/{file}")), None)
        if path is not None:
            words = [f"{audit.findings[i].code} {audit.findings[i].severity.value}" for i in some]
            found[f"{path.parts[-3]} {name}"] = ", ".join(words) or "-"
    return found


def test_each_variant_leads_to_what_the_page_says(audit: Audit) -> None:
    rows = re.findall(
        r"^\| (p2p|net) `([\w-]+)` \| (.+?) \|$", DOC.read_text().partition("| variant | contract |")[0], re.M
    )
    assert {f"{transport} {name}": said for transport, name, said in rows} == _found(audit)


def test_every_variant_is_looked_at(audit: Audit) -> None:
    names = {name.removeprefix("net:").removeprefix("p2p:").rpartition("/")[2] for name in transfer.variants()}
    looked = {name.partition(" ")[2] for name in _found(audit)}
    assert looked <= names | {"split"}
    assert len(looked) >= 12


def test_what_is_right_leads_to_nothing(audit: Audit) -> None:
    places = {item.file for finding in audit.findings for item in finding.evidence}
    assert all("/variants/" in place for place in places), places


def test_a_build_with_debug_information_has_nothing_local_in_its_messages(generated: Path, tmp_path: Path) -> None:  # noqa: F811
    headers = tmp_path / "every.c"
    headers.write_text(
        "#define _GNU_SOURCE\n"
        + "".join(
            f'#include "{path}"\n'
            for path in [*sorted((ground.PSM / "include/psm").glob("*.h")), *sorted(ground.PSM.glob("*/*.h"))]
        )
    )
    library = debuggable(
        [headers, ground.PSM / "proxy/pool.c", ground.PSM / "p2p/fifo.c"],
        tmp_path / "lib.o.so",
        generated,
        "-Wl,--unresolved-symbols=ignore-all",
    )
    found = audit_structs([library])
    assert found.findings == ()
    assert len(found.structs) >= 30
