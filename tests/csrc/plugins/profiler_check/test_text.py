"""What an event is called: with the application's tag, and the phase of a kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.plugins.profiler_check.built import CHECK

PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "event.h"
static void say(struct event *e)
{
    char text[200];
    event_text(e, text, sizeof text);
    puts(text);
}
int main(void)
{
    struct event phase = {.type = ncclProfileKernelPhase, .step = 2, .channel = 3, .tag = 9};
    struct event coll = {.type = ncclProfileColl, .seq = 7, .tag = UINT64_C(1) << 63 | 42};
    struct event p2p = {.type = ncclProfileP2p, .peer = 1, .tag = 5};
    strcpy(coll.func, "AllReduce");
    strcpy(p2p.func, "Send");
    say(&phase);
    strcpy(phase.algo, "final_sync");
    say(&phase);
    say(&coll);
    say(&p2p);
    coll.tag = 0;
    say(&coll);
    return 0;
}
"""


def test_tags_and_phases_are_named(tmp_path: Path) -> None:
    compiled.abi_versions(tmp_path)
    (tmp_path / "text.c").write_text(PROGRAM)
    include = compiled.ROOT / "psmkit" / "psm" / "include"
    program = compiled.compile_c(
        tmp_path / "text", [tmp_path / "text.c", CHECK / "rules.c"], [f"-I{CHECK}", f"-I{tmp_path}", f"-I{include}"]
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "KernelPhase 2 of channel 3",
        "KernelPhase final_sync of channel 3",
        "Coll AllReduce seq 7 tag 42",  # the highest bit is NCCL's
        "P2p Send peer 1 tag 5",
        "Coll AllReduce seq 7",
    ]
