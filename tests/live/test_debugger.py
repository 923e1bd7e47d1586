"""A process goes on as before after a debugger has looked at it, also when the debugger was killed in between."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from psmkit.live import debugger, procfs, tracing
from psmkit.live.inspect import dump_of
from psmkit.logparse.foreign.types import StackDump
from tests.csrc.base import compiled
from tests.live.processes import needs_eu_stack, needs_gdb, process, until

COUNTS = """
import os, sys, threading, time
def spin():
    while True:
        time.sleep(0.001)
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
print("up", flush=True)
number = 0
while True:
    number += 1
    os.write(1, b"%d\\n" % number)
    time.sleep(0.001)
"""


def goes_on(pid: int, out: int) -> bool:
    """Whether it still counts. The pipe may be full: empty it first."""
    os.set_blocking(out, False)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            while os.read(out, 1 << 16):
                pass
        except BlockingIOError:
            pass
        time.sleep(0.05)
        try:
            if os.read(out, 1 << 16):
                return procfs.state_of(pid) in ("S", "R") and tracing.tracer_of(pid) == 0
        except BlockingIOError:
            continue
    return False


@needs_gdb
def test_gdb_gives_the_stacks_of_all_threads_and_the_time() -> None:
    with process(COUNTS, waits=False) as child:
        taken = debugger.take(child.pid, "gdb", timeout=60)
        assert child.stdout is not None
        assert goes_on(child.pid, child.stdout.fileno())
    assert taken.trouble is None and taken.stopped is not None and 0 < taken.stopped <= taken.seconds
    dump = dump_of(taken)
    assert isinstance(dump, StackDump) and len(dump.threads) == 4
    assert all(thread.frames for thread in dump.threads) and child.pid in {thread.tid for thread in dump.threads}


@needs_eu_stack
def test_eu_stack_gives_the_stacks_of_all_threads() -> None:
    with process(COUNTS, waits=False) as child:
        taken = debugger.take(child.pid, "eu-stack", timeout=60)
        assert child.stdout is not None
        assert goes_on(child.pid, child.stdout.fileno())
    dump = dump_of(taken)
    assert isinstance(dump, StackDump) and len(dump.threads) == 4
    assert any(frame.function != "??" for thread in dump.threads for frame in thread.frames)


@needs_gdb
def test_process_goes_on_after_gdb_was_killed_at_any_time() -> None:
    with process(COUNTS, waits=False) as child:
        assert child.stdout is not None
        whole = debugger.take(child.pid, "gdb", timeout=60)
        killed = 0
        for part in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9):
            taken = debugger.take(child.pid, "gdb", timeout=whole.seconds * part)
            killed += taken.trouble is not None
            assert goes_on(child.pid, child.stdout.fileno()), part
        assert killed, "no timeout was short enough"


def test_stop_signal_that_a_dead_tracer_left_is_taken_back() -> None:
    with process(COUNTS, waits=False) as child:
        assert child.stdout is not None
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: procfs.state_of(child.pid) == "T", "it did not stop")
        debugger.release(child.pid, 1, "S")
        assert goes_on(child.pid, child.stdout.fileno())


@needs_gdb
def test_process_that_was_stopped_before_stays_stopped() -> None:
    with process(COUNTS, waits=False) as child:
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: procfs.state_of(child.pid) == "T", "it did not stop")
        debugger.take(child.pid, "gdb", timeout=60)
        time.sleep(0.05)
        assert procfs.state_of(child.pid) == "T"


def test_missing_tool_is_trouble_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert debugger.available() is None
    taken = debugger.take(os.getpid(), "eu-stack", timeout=5)
    assert taken.trouble is not None and "cannot run eu-stack" in taken.trouble


@needs_gdb
def test_stacks_are_written_to_a_file_with_what_the_kernel_says(tmp_path: Path) -> None:
    with process(COUNTS, waits=False) as child:
        debugger.write(child.pid, tmp_path / "new" / "stacks.txt", title="rank 0 hangs")
        assert child.stdout is not None
        assert goes_on(child.pid, child.stdout.fileno())
    text = (tmp_path / "new" / "stacks.txt").read_text()
    assert text.startswith("rank 0 hangs\n\nthread ") and text.count("\nThread ") == 4


def test_file_of_stacks_says_that_there_is_no_gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    debugger.write(os.getpid(), tmp_path / "stacks.txt", title="rank 0 hangs")
    text = (tmp_path / "stacks.txt").read_text()
    assert "no stacks: there is no gdb on the path" in text and f"thread {os.getpid()} " in text


TABLE = """
#include <stdio.h>
#include <unistd.h>
struct address { short family; char data[26]; };
__attribute__((noinline)) static void hold(struct address *table, int count)
{
    puts("up");
    fflush(stdout);
    for (;;) pause();
    printf("%p %d", (void *)table, count);
}
int main(void)
{
    static struct address table[] = {{2, "a"}, {2, "b"}, {0}, {2, "c"}, {0}};
    hold(table, 5);
}
"""


@needs_gdb
@pytest.mark.parametrize(
    ("expressions", "answer"),
    [
        (["$psmkit_empty(table, count)"], "peer=2"),
        (["$psmkit_empty(table, 2)", "3"], "peer=3"),
        (["$psmkit_empty((struct address *)0, count)", "$psmkit_empty(missing, 4)", "7"], "peer=7"),
    ],
)
def test_question_can_ask_for_the_first_empty_item_of_a_table(
    tmp_path: Path, expressions: list[str], answer: str
) -> None:
    source = tmp_path / "hold.c"
    source.write_text(TABLE)
    program = compiled.link(tmp_path / "hold", [source], ["-g", "-O0"], [])
    with subprocess.Popen([program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            ask = [debugger.Question("hold", "", "", {"peer": expressions})]
            taken = debugger.take(child.pid, "gdb", timeout=60, questions=ask)
        finally:
            child.kill()
    assert f" hold {answer}\n" in taken.text
