"""No pointer, handle or descriptor is in a struct that two processes share: the rule whose breach was the seed of libpsm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.psm import ground
from tests.psm import dwarf
from tests.psm.conftest import debuggable

# Of all that two processes share: a change of a size is a change of PSM_WIRE_VERSION, or of the version of a segment or schema.
SIZES = {
    "psm_share": 96,
    "psm_peer_info": 120,
    "psm_p2p_connect": 128,
    "psmP2pShareInfo": 120,
    "psmProxyAddress": 64,
    "psm_segment_header": 120,
    "psm_line": 64,
    "psm_fifo_head": 128,
    "psm_fifo_slot": 64,
    "psm_p2p_setup": 40,
    "psm_p2p_attach": 240,
    "psm_p2p_registration": 120,
    "psm_p2p_offer": 64,
    "psm_p2p_control": 448,
    "psm_op_row": 96,
    "psm_wire_head": 16,
    "psm_wire_hello": 80,
    "psm_wire_request": 48,
    "psm_wire_response": 40,
    "psm_wire_reason": 280,
    "psm_wire_bye": 280,
    "psm_wire_fd_ask": 40,
    "psm_wire_fd_answer": 168,
    "psm_wire_init": 16,
    "psm_wire_inited": 8,
    "psmPlanEvent": 48,
    "psm_net_connect": 248,
    "psmNetShareInfo": 240,
    "psm_net_head": 64,
    "psm_net_credit": 64,
    "psm_net_setup": 32,
    "psm_net_connected": 8,
}


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory, generated: Path) -> dict[str, tuple[int, list[str]]]:
    folder = tmp_path_factory.mktemp("dwarf")
    # Headers that no source includes yet are looked at, too.
    headers = [*(ground.PSM / "include" / "psm").glob("*.h"), *ground.PSM.glob("*/*.h")]
    every = folder / "every.c"
    every.write_text("#define _GNU_SOURCE\n" + "".join(f'#include "{header}"\n' for header in sorted(headers)))
    sources = [
        *sorted(ground.PSM.rglob("*.c")),
        *sorted(ground.RULES.glob("*.c")),
        *sorted(compiled.BASE.glob("*.c")),
        every,
    ]
    return dwarf.shareable(debuggable(sources, folder / "libpsm.so", generated))


def test_shareable_structs_hold_nothing_of_one_process(marked: dict[str, tuple[int, list[str]]]) -> None:
    assert [fault for _, faults in marked.values() for fault in faults] == []


def test_sizes_are_pinned(marked: dict[str, tuple[int, list[str]]]) -> None:
    assert {name: size for name, (size, _) in marked.items()} == SIZES


def test_every_struct_that_is_said_to_cross_processes_is_marked() -> None:
    """An assertion about the size of a struct, without the mark, is a mark that was forgotten."""
    assertion = re.compile(
        r"(?:_Static_assert|PSM_STATIC_ASSERT|static_assert)\s*\(\s*sizeof\s*\(\s*struct\s+(\w+)\s*\)\s*=="
    )
    found = [
        f"{path.relative_to(ground.ROOT)}: struct {name}"
        for path in sorted(ground.PSM.rglob("*.[ch]"))
        for name in assertion.findall(path.read_text())
        if path.name != "psm.h"
    ]
    assert found == []


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        ("void *devShm", "a pointer"),
        ("int (*call)(void)", "a pointer"),
        ("char *const names[4]", "a pointer"),
        ("cudaStream_t stream", "cudaStream_t"),
        ("cudaEvent_t events[8]", "cudaEvent_t"),
        ("CUmemGenericAllocationHandle memory", "CUmemGenericAllocationHandle"),
        ("CUdeviceptr address", "CUdeviceptr"),
        ("int32_t fd", "a descriptor"),
        ("int32_t peer_fd", "a descriptor"),
        ("int32_t importFd", "a descriptor"),
        ("size_t bytes", "width"),
        ("long bytes", "width"),
        ("int count", "width"),
        ("struct { struct { uint32_t a; union { uint64_t b; void *c; } u; } in[2]; } out", "out.in.u.c: a pointer"),
        ("const volatile struct inner pair", "pair.stream: a handle"),
        ("enum psm_share_kind kind", "an enum"),
    ],
)
def test_a_planted_member_is_found(tmp_path: Path, generated: Path, member: str, fault: str) -> None:
    source = tmp_path / "planted.c"
    source.write_text(
        '#include "psm/psm_share.h"\n#include "psm_cuda.h"\n'
        "struct inner { uint64_t fine; cudaStream_t stream; };\n"
        f"struct planted {{ uint64_t before; {member}; }};\n"
        "PSM_SHAREABLE(planted, sizeof(struct planted));\n"
    )
    library = debuggable([source], tmp_path / "planted.so", generated)
    _, found = dwarf.shareable(library)["planted"]
    assert len(found) == 1 and fault in found[0], found
    assert dwarf.shareable(library)["psm_share"] == (SIZES["psm_share"], [])


def test_what_is_fine_is_not_found_fault_with(tmp_path: Path, generated: Path) -> None:
    source = tmp_path / "fine.c"
    source.write_text(
        '#include "shm/line.h"\n#include "psm/psm_share.h"\n'
        "struct fine { struct psm_line head, tail[4]; struct psm_share share; uint8_t blob[64]; char name[16];\n"
        "  _Atomic int32_t flag; volatile uint16_t offset_fdx; union { int64_t a; uint8_t b[8]; }; };\n"
        "PSM_SHAREABLE(fine, sizeof(struct fine));\n"
    )
    found = dwarf.shareable(debuggable([source], tmp_path / "fine.so", generated))
    assert found["fine"][1] == [] and found["psm_line"] == (64, [])


def test_a_size_that_changed_does_not_compile(tmp_path: Path, generated: Path) -> None:
    source = tmp_path / "changed.c"
    source.write_text('#include "psm/psm.h"\nstruct s { uint64_t a, b; };\nPSM_SHAREABLE(s, 8);\n')
    with pytest.raises(AssertionError, match="struct s crosses processes"):
        debuggable([source], tmp_path / "changed.so", generated)
