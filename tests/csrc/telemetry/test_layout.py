"""The numpy types of the telemetry are the C structs, member by member."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from psmkit.telemetry import layout
from tests.csrc.base import compiled
from tests.telemetry import made

STRUCTS: dict[str, np.dtype[np.void]] = {
    "psm_tel_comm": layout.COMM,
    "psm_tel_stat": layout.STAT,
    "psm_tel_op": layout.OP,
    "psm_tel_link": layout.LINK,
    "psm_tel_span_stat": layout.TIME,
    "psm_tel_row": layout.ROW,
    "psm_tel_losses": layout.LOSSES,
    "psm_prof_event": layout.EVENT,
    "psm_prof_comm": made.HEAD,
    "psm_prof_window": made.WINDOW,
}
UNIONS: dict[str, np.dtype[np.void]] = {
    "coll": layout.COLL,
    "p2p": layout.P2P,
    "proxy_op": layout.PROXY_OP,
    "proxy_step": layout.PROXY_STEP,
    "proxy_ctrl": layout.PROXY_CTRL,
    "kernel_ch": layout.KERNEL,
    "kernel_phase": layout.KERNEL_PHASE,
    "tagged": layout.TAGGED,
    "net": layout.NET,
    "api": layout.API,
    "ce": layout.CE,
}


def test_members_have_the_offsets_and_sizes_of_c(tmp_path: Path) -> None:
    members = [(name, "", dtype, field) for name, dtype in STRUCTS.items() for field in dtype.names or ()]
    members += [("psm_prof_event", f"u.{name}.", dtype, field) for name, dtype in UNIONS.items() for field in dtype.names or ()]  # fmt: skip
    lines = [
        f'printf("%zu %zu\\n", offsetof(struct {name}, {path}{field}), sizeof(((struct {name} *)0)->{path}{field}));'
        for name, path, _, field in members
    ]
    lines += [f'printf("%zu 0\\n", sizeof(struct {name}));' for name in STRUCTS]
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "window.h"\n#include "telemetry.cdef.h"\nint main(void)\n{\n'
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    program = compiled.compile_c(tmp_path / "layout", [source], [f"-I{compiled.ROOT / 'csrc' / 'telemetry'}"])
    output = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    union = int(output[[f"{n}.{f}" for n, _, _, f in members].index("psm_prof_event.u")].split()[0])
    for (name, path, dtype, field), line in zip(members, output, strict=False):
        assert dtype.fields is not None
        offset, size = map(int, line.split())
        found = dtype.fields[field]
        assert (offset - (union if path else 0), size) == (found[1], found[0].itemsize), f"{name}.{path}{field}"
    sizes = [int(line.split()[0]) for line in output[len(members) :]]
    assert sizes == [dtype.itemsize for dtype in STRUCTS.values()]
