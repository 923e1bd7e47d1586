"""csrc/abi has the layouts and values of NCCL's plugin ABIs, as they were measured from NCCL's headers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from psmkit.model.results import RESULTS
from tests.abi import layouts
from tests.abi.layouts import Unit
from tests.abi.units import ABI, COMPILERS, FACTS, HEADERS, MOVING, ROOT, compare, compiled, constants, source, tables

SHEET = ROOT.parent / "shared" / "abi" / "nccl_plugin_abi.json"


def unit(folder: Path, language: str, include: Path = ABI) -> Unit:
    done = compiled(source(), folder, language, include=include)
    assert done.returncode == 0, done.stderr
    return Unit(folder / "unit.o")


@pytest.mark.parametrize("language", COMPILERS)
def test_every_known_fact_holds_in_the_headers(language: str, tmp_path: Path) -> None:
    result = compare(unit(tmp_path, language))
    print(f"\n{language}: {result.count:,} facts compared, {len(result.differences)} differ")
    assert not result.differences
    assert result.count > 6000  # a comparison that loses its facts must not pass


@pytest.mark.skipif(not SHEET.exists(), reason="the fact sheet is not beside the repository")
def test_the_facts_are_those_of_the_sheet_where_it_has_any() -> None:
    assert layouts.unlike(FACTS, layouts.known(json.loads(SHEET.read_text()))) == []


def test_a_fact_that_differs_from_the_sheet_is_found() -> None:
    """The comparison is one of all its parts: a change of any is seen, and an addition is none."""
    sheet = json.loads(json.dumps({**FACTS, "structs": {}}))
    sheet["structs"] = {
        name: {
            **{k: s[k] for k in ("kind", "size", "alignment", "headers")},
            "members": [row[:5] for row in s["members"]],
        }
        for name, s in FACTS["structs"].items()
    }
    assert layouts.unlike(FACTS, sheet) == []
    sheet["structs"]["ncclNet_v6_t"]["members"][3][1] += 8
    sheet["enums"]["ncclFunc_t"][0][2]["ncclFuncSend"] = 9
    sheet["tables"]["env"]["1"]["struct"] = "ncclEnv_v2_t"
    sheet["lookups"]["2.4.2"] = []
    assert layouts.unlike(FACTS, sheet) == [
        "structs ncclNet_v6_t members",
        "enums ncclFunc_t",
        "env v1 struct",
        "lookups 2.4.2",
    ]


def test_the_names_of_results_are_those_of_the_facts() -> None:
    newest = FACTS["enums"]["ncclResult_t"][-1][2]
    assert {name: newest[name] for name in RESULTS} == {name: at for at, name in enumerate(RESULTS)}
    assert len(RESULTS) == newest["ncclNumResults"]


def test_the_file_of_the_facts_has_a_line_for_each_member() -> None:
    assert layouts.FACTS.read_text() == layouts.text(FACTS)


MUTATIONS = {
    "a member is added at the end": ("net.h", "    ncclResult_t (*setNetAttr)(void *ctx, ncclNetAttr_v12_t *netAttr);", r"\g<0> int more;"),
    "a member is left out": ("net.h", r"    ncclResult_t \(\*makeVDevice\)\(int \*d, ncclNetVDeviceProps_v11_t \*props\);", ""),
    "two members of one type change places": ("net_types.h", r"int ndevs;\n    int devs\[NCCL_NET_MAX_DEVS_PER_NIC_V9\];", "int devs[4]; int ndevs;"),
    "a parameter has another width": ("net.h", r"(?<=\(\*regMr\)\(void \*comm, void \*data, )size_t(?= size)", "int"),
    "a parameter is added": ("tuner.h", r"int numProto, int regBuff,", "int numProto, int regBuff, int more,"),
    "a member has another sign": ("net_types.h", "int16_t railId", "uint16_t railId"),
    "a record is packed": ("net_types.h", r"\} ncclNetProperties_v8_t;", "} __attribute__((packed)) ncclNetProperties_v8_t;"),
    "a member of a union in a struct moves": ("profiler.h", r"uint64_t pTimer;", "uint32_t more; uint64_t pTimer;"),
    "an enumerator has another value": ("common.h", "NCCL_LOG_INFO = 3", "NCCL_LOG_INFO = 6"),
    "an enumerator is added": ("common.h", "NCCL_LOG_TRACE = 5", "NCCL_LOG_TRACE = 5, NCCL_LOG_MORE = 6"),
    "a constant has another value": ("net_types.h", "define NCCL_NET_MAX_REQUESTS_V6 8", "define NCCL_NET_MAX_REQUESTS_V6 32"),
    "the tuner's constants are those of the example header": ("tuner.h", r"    double perChMaxNVLSTreeBws\S+;", ""),
    "a name moves with the release": ("net.h", r"\} ncclNet_v12_t;", "} ncclNet_v12_t; typedef ncclNet_v12_t ncclNet_t;"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_header_that_was_changed_is_found(mutation: str, tmp_path: Path) -> None:
    name, pattern, replacement = MUTATIONS[mutation]
    shutil.copytree(ABI / "psm_abi", tmp_path / "psm_abi")
    header = tmp_path / "psm_abi" / name
    text, count = re.subn(
        pattern if "\\" in pattern or "(" not in pattern else re.escape(pattern), replacement, header.read_text()
    )
    assert count >= 1
    header.write_text(text)
    assert compare(unit(tmp_path, "c", include=tmp_path)).differences


@pytest.mark.parametrize("language", COMPILERS)
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_each_header_stands_on_its_own(header: Path, language: str, tmp_path: Path) -> None:
    done = compiled(f'#include "psm_abi/{header.name}"\n#include "psm_abi/{header.name}"\n', tmp_path, language)
    assert done.returncode == 0, done.stderr


def test_no_constant_is_declared_that_the_facts_do_not_know(tmp_path: Path) -> None:
    (tmp_path / "unit.c").write_text("".join(f'#include "psm_abi/{path.name}"\n' for path in HEADERS))
    done = subprocess.run(
        [COMPILERS["c"][0], "-dM", "-E", f"-I{ABI}", str(tmp_path / "unit.c")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    defined = set(re.findall(r"#define ((?:NCCL|MAX)_\w+)", done.stdout))
    assert defined == set(constants())
    assert not defined & MOVING


def table_definitions() -> str:
    lines = [f'#include "psm_abi/{path.name}"' for path in HEADERS]
    lines += [f'const {struct} {symbol} = {{"x"}};' for symbol, struct in tables()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("language", COMPILERS)
def test_one_library_can_have_all_tables_and_they_are_seen_outside(language: str, tmp_path: Path) -> None:
    quiet = ("-Wno-missing-field-initializers", "-fvisibility=hidden", "-fPIC")
    done = compiled(table_definitions(), tmp_path, language, *quiet)
    assert done.returncode == 0, done.stderr
    library = tmp_path / "libnccl-net-all.so"
    subprocess.run(
        [COMPILERS[language][0], "-shared", str(tmp_path / "unit.o"), "-o", str(library)], check=True, timeout=60
    )
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        seen = {s.name: s["st_size"] for s in symbols if s["st_shndx"] != "SHN_UNDEF"}
    assert {symbol: FACTS["structs"][struct]["size"] for symbol, struct in tables()}.items() <= seen.items()


def test_a_table_of_another_version_than_its_symbol_does_not_compile(tmp_path: Path) -> None:
    text = '#include "psm_abi/net.h"\nconst ncclNet_v7_t ncclNetPlugin_v8 = {"x"};\n'
    done = compiled(text, tmp_path, "c", "-Wno-missing-field-initializers")
    assert done.returncode != 0
    assert "conflicting types for" in done.stderr


def test_tables_can_be_filled_in_at_run_time(tmp_path: Path) -> None:
    text = '#include "psm_abi/net.h"\nncclNet_v8_t ncclNetPlugin_v8;\nvoid fill(void);\nvoid fill(void) { ncclNetPlugin_v8.name = "x"; }\n'
    done = compiled(text, tmp_path, "c", "-DPSM_ABI_CONST=")
    assert done.returncode == 0, done.stderr


NCCL_H = """#ifndef NCCL_H_
#define NCCL_H_
typedef enum { ncclSuccess = 0, ncclNumResults = 1 } ncclResult_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
#endif
"""


def test_types_of_an_nccl_h_that_comes_first_are_used(tmp_path: Path) -> None:
    (tmp_path / "nccl.h").write_text(NCCL_H)
    includes = "".join(f'#include "psm_abi/{path.name}"\n' for path in HEADERS)
    done = compiled(f'#include "nccl.h"\n{includes}', tmp_path, "c", f"-I{tmp_path}")
    assert done.returncode == 0, done.stderr


def test_an_nccl_h_that_comes_second_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "nccl.h").write_text(NCCL_H)
    done = compiled('#include "psm_abi/net.h"\n#include "nccl.h"\n', tmp_path, "c", f"-I{tmp_path}")
    assert done.returncode != 0
    assert "Include nccl.h first." in done.stderr


@pytest.mark.parametrize("guard", ["NCCL_NET_H_", "NCCL_TUNER_H_", "NCCL_PROFILER_H_", "NCCL_DEBUG_H_", "NCCL_ERR_H_"])
def test_nccls_own_plugin_headers_before_these_are_refused_with_what_to_do(guard: str, tmp_path: Path) -> None:
    done = compiled(f'#define {guard}\n#include "psm_abi/tuner.h"\n', tmp_path, "c")
    assert done.returncode != 0
    assert "Include either those or psm_abi in one file" in done.stderr
