"""What `plugin check` finds in libraries, right and wrong."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from psmkit.model import Severity
from psmkit.model.errors import InputError
from psmkit.plugins import Check, all_releases, check, loader, release
from psmkit.plugins.abi import symbols_of, tables
from tests.plugins.build import HEAD, all_tables, build, table, unknown


def codes(result: Check) -> list[str]:
    return [finding.code for finding in result.findings]


def text(result: Check) -> str:
    return "\n".join(f"{f.severity} {f.code} {f.title}: {f.explanation}" for f in result.findings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net plugin with all its tables, and CollNet's."""
    source = all_tables("net").replace("ncclNetPlugin_v1 ", "unused ") + all_tables("collnet")
    return build(tmp_path_factory.mktemp("whole"), source)


def test_a_plugin_with_all_tables_is_clean_and_each_release_takes_the_newest_that_it_knows(whole: Path) -> None:
    result = check(whole)
    assert result.findings == () and result.clean and result.loaded
    assert {one.name for one in result.tables} == {"psm"}
    assert len(result.uses) == len(all_releases()) > 70
    for use in result.uses:
        wanted = symbols_of(use.release.facts)
        for kind in ("net", "collnet"):
            newest = max((t.version for t in tables() if t.kind == kind and t.symbol in wanted), default=None)
            taken = use.taken.get(kind)
            assert (taken.version if taken else None) == newest, str(use.release)
    # Which symbol a binary looks for is known of seven releases by the strings in it.
    assert check(whole, [release("NCCL", "2.32.3")]).uses[0].taken["net"].version == 12


@pytest.mark.parametrize("kind", ["tuner", "profiler", "env", "gin", "rma"])
def test_a_plugin_of_each_kind_is_clean(kind: str, tmp_path: Path) -> None:
    result = check(build(tmp_path, all_tables(kind), f"libnccl-{kind}.so"))
    assert result.findings == (), text(result)
    assert any(use.settings.get(kind) for use in result.uses)


@pytest.mark.parametrize(
    ("symbol", "slot"),
    [
        ("ncclNetPlugin_v8", "isend"),
        ("ncclNetPlugin_v8", "name"),
        ("ncclNetPlugin_v11", "finalize"),
        ("ncclCollNetPlugin_v11", "finalize"),
        ("ncclTunerPlugin_v4", "getCollInfo"),
        ("ncclTunerPlugin_v6", "finalize"),
        ("ncclProfiler_v4", "recordEventState"),
        ("ncclEnvPlugin_v1", "getEnv"),
        ("ncclGinPlugin_v13", "createContext"),
        ("ncclRmaPlugin_v14", "iput"),
    ],
)
@pytest.mark.parametrize("load", [True, False])
def test_an_empty_slot_that_nccl_uses_is_found(symbol: str, slot: str, load: bool, tmp_path: Path) -> None:
    source = table(symbol, leave_out=(slot,)) + (table("ncclNetPlugin_v8") if "CollNet" in symbol else "")
    result = check(build(tmp_path, source), load=load)
    (finding,) = result.findings
    assert finding.code == "PSM903" and finding.severity is Severity.ERROR
    assert finding.title == f"{symbol}: {slot} is NULL"


def test_slots_that_may_be_empty_are_no_finding(tmp_path: Path) -> None:
    net = ("regMrDmaBuf", "iflush", "getDeviceMr", "irecvConsumed", "makeVDevice", "setNetAttr")
    source = (
        table("ncclNetPlugin_v12", net)
        + table("ncclTunerPlugin_v6", ("getChunkSize",))
        + table("ncclEnvPlugin_v2", ("finalize",))
    )
    result = check(build(tmp_path, source))
    assert result.findings == ()
    lacking = {one.table.symbol: dict(one.lacking) for one in result.tables}
    assert lacking["ncclNetPlugin_v12"]["iflush"] == "needed if ptrSupport has NCCL_PTR_CUDA"
    assert set(lacking["ncclTunerPlugin_v6"]) == {"getChunkSize"}


def test_slots_of_gin_and_rma_that_nccl_leaves_to_its_own_proxy_may_be_empty(tmp_path: Path) -> None:
    own = ("createContext", "destroyContext", "queryLastError")
    source = (
        table("ncclGinPlugin_v11", own)
        + table("ncclGinPlugin_v13", ("queryLastError",))
        + table("ncclRmaPlugin_v14", ("queryLastError",))
    )
    result = check(build(tmp_path, source, "libnccl-gin.so"))
    assert result.findings == (), text(result)
    lacking = {one.table.symbol: dict(one.lacking) for one in result.tables}
    assert {lacking["ncclGinPlugin_v11"][name] for name in own} == {
        "needed if netDeviceType is NCCL_NET_DEVICE_GIN_GDAKI"
    }


FILLED = """
ncclNet_v8_t ncclNetPlugin_v8;
static const ncclNet_v8_t mine = {%s};
__attribute__((constructor)) static void fill(void) { ncclNetPlugin_v8 = mine; }
"""


def test_a_table_that_is_filled_when_the_library_is_loaded_is_judged_by_what_is_then_there(tmp_path: Path) -> None:
    rows = table("ncclNetPlugin_v8").partition("{")[2].rpartition("}")[0]
    library = build(tmp_path, FILLED % rows, "libnccl-net.so", "-DPSM_ABI_CONST=")
    result = check(library)
    assert result.findings == () and result.tables[0].name == "psm"
    # From the file alone nobody can know.
    (finding,) = check(library, load=False).findings
    assert finding.code == "PSM903" and finding.severity is Severity.WARNING and finding.confidence < 1
    assert "may fill it" in finding.explanation


@pytest.mark.parametrize(
    "more", [("-Wl,-z,pack-relative-relocs",), ("-Wl,--hash-style=sysv",), ("-s",), ("-Wl,-z,norelro",)]
)
def test_tables_are_read_however_the_library_was_linked(more: tuple[str, ...], tmp_path: Path) -> None:
    result = check(build(tmp_path, table("ncclNetPlugin_v8", ("isend",)), "libnccl-net.so", *more), load=False)
    (finding,) = result.findings
    assert finding.title == "ncclNetPlugin_v8: isend is NULL" and result.tables[0].name == "psm"


def test_symbols_that_nothing_provides_are_all_named(tmp_path: Path) -> None:
    source = table("ncclNetPlugin_v8") + (
        "extern int cudaFree(void *); extern int ibv_missing(void); extern int data_missing; int *p = &data_missing;\n"
        "int use(void); int use(void) { return cudaFree(0) + ibv_missing(); }\n"
    )
    for more in ((), ("-Wl,-z,now",), ("-Wl,-z,lazy",)):
        result = check(build(tmp_path, source, "libnccl-net.so", *more))
        assert codes(result) == ["PSM905"]
        assert result.unresolved == ("cudaFree", "data_missing", "ibv_missing") and result.loaded is False


def test_symbols_of_cuda_may_be_the_programs(tmp_path: Path) -> None:
    source = (
        table("ncclNetPlugin_v8")
        + "extern int cudaFree(void *);\nint use(void);\nint use(void) { return cudaFree(0); }\n"
    )
    library = build(tmp_path, source)
    (finding,) = check(library).findings
    assert finding.code == "PSM905" and finding.severity is Severity.WARNING and "cudaFree" in finding.title
    program = build(tmp_path, "int cudaFree(void *p) { return 0; }\n", "libcudart-psm-test.so", head="")
    assert check(library, preload=[str(program)]).findings == ()
    for wrong in ("/missing/libcudart.so", "a b.so", "a:b.so"):
        with pytest.raises(InputError):
            check(library, preload=[wrong])


def test_symbols_that_were_there_by_chance_are_a_warning(tmp_path: Path) -> None:
    source = (
        table("ncclNetPlugin_v8")
        + "extern void *malloc(unsigned long);\nvoid *use(void);\nvoid *use(void) { return malloc(7); }\n"
    )
    result = check(build(tmp_path, source, "libnccl-net.so", "-nostdlib"))
    (finding,) = result.findings
    assert (
        finding.code == "PSM905"
        and finding.severity is Severity.WARNING
        and result.loaded
        and result.unresolved == ("malloc",)
    )
    assert "the process that loaded it here did" in finding.explanation


def test_a_table_with_more_than_its_version_has_is_judged_by_its_version(tmp_path: Path) -> None:
    rows = table("ncclNetPlugin_v8").partition("{")[2].rpartition("}")[0]
    head = HEAD.replace("#include", "#define ncclNetPlugin_v8 declared\n#include", 1).replace(
        "static nccl", "#undef ncclNetPlugin_v8\nstatic nccl"
    )
    result = check(
        build(
            tmp_path,
            f"const struct {{ ncclNet_v8_t t; void *more[2]; }} ncclNetPlugin_v8 = {{{{{rows}}}}};\n",
            head=head,
        )
    )
    (finding,) = result.findings
    assert (
        finding.code == "PSM904"
        and finding.severity is Severity.WARNING
        and "168 bytes long; a table of version 8 has 152" in text(result)
    )
    assert result.tables[0].name == "psm" and result.tables[0].sound and not result.tables[0].empty


def test_a_weak_symbol_that_is_not_there_is_no_finding_but_an_empty_slot_of_it_is(tmp_path: Path) -> None:
    weak = "__attribute__((weak)) ncclResult_t later(void *);\n"
    fine = table("ncclNetPlugin_v8") + weak + "int use(void); int use(void) { return later ? later(0) : 0; }\n"
    assert check(build(tmp_path, fine)).findings == ()
    source = weak + table("ncclNetPlugin_v8").replace(".closeSend = (void *)nothing", ".closeSend = later")
    (finding,) = check(build(tmp_path, source)).findings
    assert finding.title == "ncclNetPlugin_v8: closeSend is NULL"


def test_a_library_that_is_not_found_is_named(tmp_path: Path) -> None:
    build(tmp_path, "int helper(void); int helper(void) { return 1; }\n", "libhelper-psm-test.so", head="")
    source = table("ncclNetPlugin_v8") + "extern int helper(void); int use(void); int use(void) { return helper(); }\n"
    library = build(tmp_path, source, "libnccl-net.so", f"-L{tmp_path}", "-lhelper-psm-test")
    result = check(library)
    assert codes(result) == ["PSM905"] and "libhelper-psm-test.so" in result.missing
    found = build(tmp_path, source, "libnccl-net.so", f"-L{tmp_path}", "-lhelper-psm-test", "-Wl,-rpath,$ORIGIN")
    assert check(found).findings == ()


HIDDEN = {
    "static": ("c", "static ", ""),
    "a hidden symbol": ("c", "", "-fvisibility=hidden"),
    "a constant of C++": ("cc", "", ""),
    "a table in a namespace": ("cc", "namespace plugin { extern ", ""),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_a_table_that_is_not_seen_outside_is_named(how: str, tmp_path: Path) -> None:
    language, before, option = HIDDEN[how]
    # As an author would have it who has declared the type alone.
    source = f'typedef struct {{ const char *name; void *slots[18]; }} ncclNet_v8_t;\n{before}const ncclNet_v8_t ncclNetPlugin_v8 = {{"psm"}};\n'
    source += "}\n" if "namespace" in before else ""
    source += "const void *use() { return &%sncclNetPlugin_v8; }\n" % ("plugin::" if "namespace" in before else "")
    result = check(build(tmp_path, source, "libnccl-net.so", *([option] if option else []), language=language, head=""))
    assert "PSM902" in codes(result) and "ncclNetPlugin_v8" in text(result), text(result)
    assert result.tables == ()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("ncclNetPlugin_V8", "ncclNetPlugin_v8"),
        ("ncclProfilerPlugin_v4", "ncclProfiler_v4"),
        ("ncclTuner_v4", "ncclTunerPlugin_v4"),
        ("ncclNetPlugin8", None),
    ],
)
def test_a_name_that_is_nearly_right_is_told(wrong: str, right: str | None, tmp_path: Path) -> None:
    result = check(build(tmp_path, f"const void *const {wrong}[19] = {{0}};\n"))
    assert "PSM902" in codes(result) and not result.clean
    if right is not None:
        assert any(f.title.startswith(wrong) and right in f.explanation for f in result.findings), text(result)


WRONG = {
    "const ncclNet_v8_t table = {\"x\"}; const ncclNet_v8_t *const ncclNetPlugin_v8 = &table;": "as a pointer is",
    "void ncclNetPlugin_v8(void) {}": "is a function",
    "const ncclNet_v9_t ncclNetPlugin_v8 = {\"x\"};": "160 bytes long, as ncclNetPlugin_v9 would be; a table of version 8 has 152",
    "__thread int ncclNetPlugin_v8;": "data of each thread",
}  # fmt: skip


@pytest.mark.parametrize("source", WRONG)
def test_a_symbol_that_is_no_table_of_its_version_is_found(source: str, tmp_path: Path) -> None:
    head = HEAD.replace("#include", "#define ncclNetPlugin_v8 declared\n#include", 1).replace(
        "static nccl", "#undef ncclNetPlugin_v8\nstatic nccl"
    )
    result = check(build(tmp_path, source + "\n", head=head))
    assert "PSM904" in codes(result)
    assert WRONG[source] in text(result)
    assert not result.tables[0].sound


def test_tables_that_no_release_takes_are_told(tmp_path: Path) -> None:
    (alone,) = check(build(tmp_path, table("ncclCollNetPlugin_v8"))).findings
    assert alone.code == "PSM908" and alone.severity is Severity.WARNING
    result = check(build(tmp_path, table("ncclNetPlugin_v1") + table("ncclNetPlugin_v8")))
    assert codes(result) == ["PSM908"] and "ncclNetPlugin_v1" in text(result)


@pytest.mark.parametrize("name", ["ncclProfiler", "ncclRmaPlugin", "ncclNetPlugin"])
def test_tables_that_are_known_by_name_only_are_notes(name: str, tmp_path: Path) -> None:
    symbol = unknown(name)
    result = check(build(tmp_path, f"const void *const {symbol}[30] = {{0}};\n"))
    assert codes(result) == ["PSM907"] and result.clean
    assert result.tables[0].table.symbol == symbol and not result.tables[0].known
    takes = [use.taken for use in result.uses if use.taken]
    assert not takes  # no known release looks for it


def test_a_table_of_the_development_branch_is_no_finding(tmp_path: Path) -> None:
    result = check(build(tmp_path, table("ncclTunerPlugin_v6") + table("ncclTunerPlugin_v7")))
    assert result.findings == () and {one.table.symbol for one in result.tables if one.known} == {
        "ncclTunerPlugin_v6",
        "ncclTunerPlugin_v7",
    }


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plugin"), table("ncclNetPlugin_v8"), "libnccl-net.so")


def changed(plugin: Path, folder: Path, at: int, data: bytes) -> Path:
    image = bytearray(plugin.read_bytes())
    image[at : at + len(data)] = data
    path = folder / plugin.name
    path.write_bytes(image)
    return path


def test_files_that_are_no_libraries_are_refused(plugin: Path, tmp_path: Path) -> None:
    script = tmp_path / "libnccl-net.so"
    for content, why in (
        (b"", "not an ELF"),
        (b"#!/bin/sh\n", "not an ELF"),
        (b"\x7fELF", "cut off"),
        (b"INPUT(libx.so)\n", "not an ELF"),
    ):
        script.write_bytes(content)
        result = check(script)
        assert codes(result) == ["PSM901"] and why in text(result) and not result.clean
        assert not any(use.taken for use in result.uses)
    assert "32-bit" in text(check(changed(plugin, tmp_path, 4, b"\x01")))
    assert "big-endian" in text(check(changed(plugin, tmp_path, 5, b"\x02")))
    assert "not a shared library (rel)" in text(check(changed(plugin, tmp_path, 16, b"\x01\x00")))


def test_a_library_for_another_machine_is_read_and_not_loaded(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load", None)
    monkeypatch.setattr(loader, "trace", None)
    result = check(changed(plugin, tmp_path, 18, (183).to_bytes(2, "little")))
    assert "PSM901" in codes(result) and "built for AArch64" in text(result)
    assert result.tables[0].table.symbol == "ncclNetPlugin_v8" and result.loaded is None


def test_what_cannot_be_read_is_an_error_and_no_finding(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.so"):
        with pytest.raises(InputError):
            check(path)


def test_section_headers_do_not_matter(plugin: Path, tmp_path: Path) -> None:
    stripped = changed(plugin, tmp_path, 0x28, bytes(8))
    assert check(stripped).findings == () and check(stripped).tables[0].name == "psm"
    wrong = changed(plugin, tmp_path, 0x28, b"\xff" * 8)
    assert check(wrong, load=False).findings == ()


def test_a_library_that_was_cut_off_is_refused_wherever_the_cut_is(plugin: Path, tmp_path: Path) -> None:
    image = plugin.read_bytes()
    path = tmp_path / "libnccl-net.so"
    for size in range(4, len(image), 97):
        path.write_bytes(image[:size])
        result = check(path, load=False)
        # What follows the segments is of no interest to a loader.
        assert codes(result) in (["PSM901"], []), size
    path.write_bytes(image[: len(image) // 2])
    assert "PSM901" in codes(check(path))


def test_no_damage_leads_to_more_than_findings(plugin: Path, tmp_path: Path) -> None:
    image = plugin.read_bytes()
    chance = random.Random(7)
    path = tmp_path / "libnccl-net.so"
    for _ in range(200):
        damaged = bytearray(image)
        for _ in range(chance.choice((1, 2, 8, 64))):
            # Most of what leads somewhere is near the start.
            at = chance.randrange(0x1000 if chance.random() < 0.7 else len(damaged))
            damaged[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        path.write_bytes(damaged)
        check(path, load=False)


DEADLY = {
    "raise(SIGSEGV);": "SIGSEGV",
    "abort();": "SIGABRT",
    "_exit(3);": "with status 3",
    "_exit(0);": "with status 0",
    'dup2(1, 3); puts("{\\"tables\\": {}}"); fflush(stdout); _exit(0);': "status 0",
    "for (int fd = 3; fd < 64; fd++) write(fd, \"{\\\"tables\\\": 5}\", 13); _exit(0);": "status 0",
}  # fmt: skip


@pytest.mark.parametrize("code", DEADLY)
def test_a_library_that_ends_the_process_that_loads_it_is_told_and_harms_nobody(code: str, tmp_path: Path) -> None:
    head = "#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n" + HEAD
    source = table("ncclNetPlugin_v8") + f"__attribute__((constructor)) static void start(void) {{ {code} }}\n"
    result = check(build(tmp_path, source, "libnccl-net.so", "-D_GNU_SOURCE", head=head))
    assert codes(result) == ["PSM901"] and DEADLY[code] in text(result)


def test_a_library_that_does_not_return_is_given_up_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_PATIENCE", 2.0)
    head = "#include <unistd.h>\n" + HEAD
    source = (
        table("ncclNetPlugin_v8")
        + "__attribute__((constructor)) static void start(void) { fork(); for (;;) pause(); }\n"
    )
    result = check(build(tmp_path, source, head=head))
    assert codes(result) == ["PSM901"] and "did not end within" in text(result)


def test_what_a_library_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    head = "#include <stdio.h>\n" + HEAD
    source = (
        table("ncclNetPlugin_v8")
        + '__attribute__((constructor)) static void start(void) { puts("{\\"error\\": \\"x\\"}"); }\n'
    )
    assert check(build(tmp_path, source, head=head)).findings == ()


def test_the_library_is_never_in_the_process_that_checks_it(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "libnccl-net-never-loaded.so"
    shutil.copy(whole, copy)
    assert check(copy).loaded
    assert copy.name not in Path("/proc/self/maps").read_text()


RESOLVED = """
static int wanted;
__attribute__((constructor)) static void look(void) { wanted = 4; }
static const ncclProfiler_v4_t four = {"psm", (void *)nothing, (void *)nothing, (void *)nothing, (void *)nothing, (void *)nothing};
#define EXPORT(v) \\
    static void (*resolve_##v(void))(void) { return wanted == v ? (void (*)(void))&four : 0; } \\
    __attribute__((ifunc("resolve_" #v), visibility("default"))) void table_##v(void) __asm__("ncclProfiler_v" #v);
EXPORT(4)
EXPORT(5)
"""


def test_tables_that_the_library_finds_itself_are_those_that_it_gives(tmp_path: Path) -> None:
    library = build(tmp_path, RESOLVED, "libnccl-profiler-psm.so")
    result = check(library)
    assert [(one.table.symbol, one.name) for one in result.tables] == [("ncclProfiler_v4", "psm")]
    assert not codes(result)
    # What its code would answer is not known where none of it runs.
    assert len(check(library, load=False).tables) == 2
