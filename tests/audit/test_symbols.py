"""What libraries export, what collides, and what this machine lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from psmkit.audit import AuditError
from psmkit.audit.symbols import SymbolAudit, audit_symbols
from psmkit.cli.config import tree
from tests.audit.build import library


def _titles(audit: SymbolAudit) -> list[str]:
    return [f"{one.code} {one.severity.value}: {one.title}" for one in audit.findings]


def test_libpsm_and_its_plugins_are_clean() -> None:
    folder = tree() / "lib"
    audit = audit_symbols([folder / "libpsm.so", *sorted(folder.glob("libnccl-*-psm.so"))])
    assert _titles(audit) == []
    kinds = {one.path.name: one.kind for one in audit.libraries}
    assert kinds["libpsm.so"] == "links PSM" and kinds["libnccl-net-psm.so"] == "plugin"


def test_a_function_that_two_libraries_export_is_a_warning(tmp_path: Path) -> None:
    plugin = "int helper(void) { return 1; }\nint use(void) { return helper(); }\nchar ncclNetPlugin_v8[152];\n"
    one = library(tmp_path, plugin, name="libnccl-net-one.so")
    other = library(
        tmp_path, "int helper(void) { return 2; }\nchar ncclNetPlugin_v8[152];\n", name="libnccl-net-two.so"
    )
    audit = audit_symbols([one], other)
    assert _titles(audit) == ["PSM909 warning: libnccl-net-one.so and libnccl-net-two.so both export helper"]


def test_libraries_that_bind_to_themselves_are_only_noted(tmp_path: Path) -> None:
    text = "int helper(void) { return 1; }\nchar ncclNetPlugin_v8[152];\n"
    some = [library(tmp_path, text, "-Wl,-Bsymbolic", name=f"lib{name}.so") for name in ("one", "two")]
    assert [one.severity.value for one in audit_symbols(some).findings] == ["info"]


def test_what_is_hidden_does_not_collide(tmp_path: Path) -> None:
    some = [library(tmp_path, "int helper(void) { return 1; }\n", "-fvisibility=hidden", name=f"{n}.so") for n in "ab"]
    assert _titles(audit_symbols(some)) == []


def test_a_version_that_the_machine_lacks_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "new.map"
    script.write_text("NEWER_9.9 { global: newer; };\n")
    library(tmp_path, "int newer(void) { return 1; }\n", f"-Wl,--version-script={script}", name="libnewer.so")
    user = library(
        tmp_path,
        "int newer(void);\nint use(void) { return newer(); }\n",
        f"-L{tmp_path}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-l:libnewer.so",
        name="user.so",
    )  # fmt: skip
    assert _titles(audit_symbols([user])) == []
    script.write_text("NEWER_1.0 { global: newer; };\n")
    library(tmp_path, "int newer(void) { return 1; }\n", f"-Wl,--version-script={script}", name="libnewer.so")
    titles = _titles(audit_symbols([user]))
    assert "PSM905 error: user.so needs NEWER_9.9, which libnewer.so of this machine lacks" in titles


def test_a_library_that_is_not_found_is_a_warning(tmp_path: Path) -> None:
    gone = library(tmp_path, "int gone(void) { return 1; }\n", name="libgone.so")
    user = library(
        tmp_path,
        "int gone(void);\nint use(void) { return gone(); }\n",
        f"-L{tmp_path}",
        "-Wl,--no-as-needed",
        "-l:libgone.so",
        name="user.so",
    )
    gone.unlink()
    titles = _titles(audit_symbols([user]))
    assert "PSM905 warning: user.so needs libgone.so, which the loader of this machine does not find" in titles


def test_a_library_for_another_machine_is_looked_at_without_its_needs(tmp_path: Path) -> None:
    path = library(tmp_path, "int one;\n")
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    path.write_bytes(data)
    audit = audit_symbols([path])
    assert audit.findings == () and any("AArch64" in note for note in audit.notes)


@pytest.mark.parametrize("damage", ["text", "cut", "object"])
def test_what_is_no_library_is_one_line(tmp_path: Path, damage: str) -> None:
    path = library(tmp_path, "int one;\n", name="unit.o" if damage == "object" else "lib.so")
    if damage == "text":
        path.write_text("text")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(AuditError) as caught:
        audit_symbols([path])
    assert "\n" not in str(caught.value)


def test_a_copy_elsewhere_is_as_good(tmp_path: Path) -> None:
    copy = tmp_path / "libnccl-net-psm.so"
    shutil.copy(tree() / "lib" / copy.name, copy)
    (one,) = audit_symbols([copy]).libraries
    assert one.tables and all(need.found for need in one.needs if need.library.startswith("libc."))
