"""Variants from outside psmkit run in the lab: in Python, and in a C library."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from psmkit.lab import strangers, tasks, transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.model.programs import tree
from psmkit.plan import Config, Scheduler
from psmkit.plan.programs import parse_program

RIGHT = """
from psmkit import transport
from psmkit.proxy import Handlers, Running

def progress(running: Running) -> bool:
    return running.base()

transport.register_variant("mine", "lets the right one work", send=Handlers(progress=progress, base=transport.variant().send))

def made():
    return transport.register_variant("made", "is made by a call")
"""
C = """
#include <psm/psm_p2p.h>

static struct psmTransportComm ours;
static struct psmP2pVariant variant = {.size = sizeof variant, .name = "c-mine", .summary = "the right one", .outcome = "", .send = &ours, .recv = &ours};

__attribute__((constructor)) static void begin(void)
{
    const struct psmP2pVariant *right = psmP2pFindVariant(NULL);
    variant.send = right->send;
    variant.recv = right->recv;
    psmP2pRegisterVariant(&variant);
}
"""


def library(folder: Path) -> Path:
    source, made = folder / "mine.c", folder / "libmine.so"
    source.write_text(C)
    words = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{tree() / 'include'}", str(source), "-o", str(made)]
    subprocess.run([*words, f"-L{tree() / 'lib'}", f"-Wl,-rpath,{tree() / 'lib'}", "-lpsm"], check=True, timeout=120)
    return made


def python(folder: Path, text: str = RIGHT) -> Path:
    (folder / "mine.py").write_text(text)
    return folder / "mine.py"


@pytest.mark.parametrize("kind", ["python", "made", "c"])
def test_variant_moves_data_and_leaves_no_process(tmp_path: Path, kind: str) -> None:
    text = str(library(tmp_path)) if kind == "c" else f"{python(tmp_path)}:{'mine' if kind == 'python' else 'made'}"
    stranger = strangers.find(text)
    assert stranger.variant.name == {"python": "mine", "made": "made", "c": "c-mine"}[kind]
    case = transfer.Case(size=100_001, variant=stranger.variant.name)
    lab = Emulation(tmp_path / "records", leaks=True)
    done = transfer.start([case], 2, tmp_path / "run", emulation=lab, stranger=stranger, deadline=120)
    assert done.outcome.good, done.outcome
    assert done.settings["stranger"]["declares"]["name"] == stranger.variant.name
    assert not any(Path(f"/proc/{rank.pid}").exists() for rank in done.outcome.ranks)


@pytest.mark.parametrize("kind", ["python", "c"])
def test_task_file_is_played_by_the_variant(tmp_path: Path, kind: str) -> None:
    stranger = strangers.find(str(library(tmp_path)) if kind == "c" else f"{python(tmp_path)}:made")
    text = "send 64K to=+1\nrecv 64K from=-1\n"
    program = parse_program(text, 2, "case.tasks")
    config = Config(ranks=2, scheduler=Scheduler.PLANNER, channels=1, p2p_channels=1)
    done = tasks.start(text, program, config, tmp_path / "run", stranger=stranger, deadline=120)
    assert done.outcome.good and f"variant={stranger.variant.name}" in done.cases[0], done.outcome


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing.py:x", "no such file"),
        ("libnothing.so", "no such file"),
        ("two words:x", "bad variant 'two words:x'"),
        ("no.such.module:x", "No module named 'no'"),
    ],
)
def test_what_is_no_variant_is_one_line(text: str, words: str) -> None:
    assert strangers.is_stranger(text)
    with pytest.raises(LabError, match=words):
        strangers.find(text)


def test_file_that_raises_or_has_no_such_variant_is_one_line(tmp_path: Path) -> None:
    file = python(tmp_path)
    with pytest.raises(LabError, match="no variant 'other': it registers mine"):
        strangers.find(f"{file}:other")
    python(tmp_path, "raise ValueError('not today')")
    with pytest.raises(LabError, match=f"ValueError: not today; correct {file.name}:1$"):
        strangers.find(f"{file}:mine")


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("x = 1", "", "it registers no variant: call psmkit.transport.register_variant() in it"),
        ("class mine: pass", "mine", "no variant 'mine', and it registers none: call psmkit.transport.reg"),
        ("raise KeyError('mine')", "", "KeyError: 'mine'; correct mine.py:1"),
        ("(", "", "SyntaxError: '(' was never closed; correct mine.py:1"),
    ],
)
def test_file_without_a_variant_is_named_once_with_what_to_do(
    tmp_path: Path, source: str, name: str, words: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    text = f"{file}:{name}" if name else str(file)
    with pytest.raises(LabError) as caught:
        strangers.find(text)
    said = str(caught.value)
    assert said.startswith(f"cannot load the variant {text}: {words}")
    assert said.count(str(file)) == 1 and "LookupError" not in said and "\n" not in said


def test_wire_audit_finds_a_handle_in_what_the_peer_gets(tmp_path: Path) -> None:
    audited = {"PSM_WIRE_AUDIT": "1"}
    for name, good in (("split", True), ("whole-struct", False)):
        case = transfer.Case(variant=name, share="cumem")
        done = transfer.start([case], 2, tmp_path / name, environment=audited, deadline=120)
        assert done.outcome.good == good
        said = {rank.text for rank in done.outcome.ranks}
        assert good or any("a value that means nothing there" in text and "is a CUDA handle" in text for text in said)
