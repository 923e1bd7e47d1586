"""Log lines: what is printed is what the scanner reads, and it goes where NCCL's lines go."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.catalogue import Message, load
from psmkit.logparse import events
from tests.csrc.base import compiled

OWN = [m for m in load().messages if m.file.endswith("psmkit.toml")]
SPELLINGS = [(m, i) for m in OWN for i in range(len(m.patterns))]
_FIELD = re.compile(r"\{([a-z]\w*):([a-z]+)\}")
_C_TYPES = {"int": ctypes.c_int64, "uint": ctypes.c_uint64, "hex": ctypes.c_uint64, "ptr": ctypes.c_uint64}
_C_NAMES = {"int": "int64_t", "uint": "uint64_t", "hex": "uint64_t", "ptr": "uint64_t"}

Values = dict[str, int | float | str]
Render = Callable[[Message, int, Values], bytes]


def c_name(message: Message, spelling: int) -> str:
    return re.sub(r"\W", "_", message.name) + (f"_{spelling + 1}" if spelling else "")


def fields_of(message: Message, spelling: int) -> dict[str, str]:
    return dict(_FIELD.findall(message.patterns[spelling]))


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """A message by its generated C function."""
    folder = tmp_path_factory.mktemp("render")
    source = folder / "render.c"
    text = ['#include "psm_messages.h"', ""]
    for message, spelling in SPELLINGS:
        kinds = fields_of(message, spelling)
        typed = "".join(f", {_C_NAMES.get(kind, 'const char *')} {name}_" for name, kind in kinds.items())
        names = "".join(f", {name}_" for name in kinds)
        name = c_name(message, spelling)
        text.append(f"size_t render_{name}(char *buffer, size_t size{typed});")
        text.append(f"size_t render_{name}(char *buffer, size_t size{typed})")
        text.append(f"{{ struct psm_text t = {{buffer, 0, size, 0}}; psm_text_of_{name}(&t{names}); return t.n; }}")
    source.write_text("\n".join(text) + "\n")
    library = compiled.compile_c(
        folder / "render.so",
        [source, *(compiled.BASE / f for f in ("text.c", "log.c", "proc.c"))],
        ["-shared", "-fPIC", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"],
    )
    lib = ctypes.CDLL(str(library))

    def rendered(message: Message, spelling: int, values: Values) -> bytes:
        function = getattr(lib, f"render_{c_name(message, spelling)}")
        function.restype = ctypes.c_size_t
        arguments: list[object] = []
        for name, kind in fields_of(message, spelling).items():
            value = values[name]
            if kind in ("hex", "ptr") and isinstance(value, str):
                arguments.append(ctypes.c_uint64(int(value, 16)))
            elif isinstance(value, str):
                arguments.append(ctypes.c_char_p(value.encode()))
            else:
                arguments.append(_C_TYPES[kind](int(value)))
        buffer = ctypes.create_string_buffer(2048)
        return bytes(buffer[: function(buffer, ctypes.c_size_t(2048), *arguments)])

    return rendered


@pytest.mark.parametrize("message", OWN, ids=lambda m: m.name)
def test_samples_are_printed_as_they_stand_in_the_catalogue(render: Render, message: Message) -> None:
    assert len(message.samples) >= len(message.patterns)
    seen = set()
    for sample in message.samples:
        spelling = next(
            i
            for i, pattern in enumerate(message.patterns)
            if re.fullmatch("(.+)".join(map(re.escape, re.split(r"\{\w+:\w+\}", pattern))), sample.text)
        )
        seen.add(spelling)
        assert render(message, spelling, dict(sample.fields)).decode() == sample.text
    assert seen == set(range(len(message.patterns))), "every spelling has a sample"


# Text that hurts: control bytes, other records, terminal sequences, and pieces of the patterns themselves.
_PIECES = st.sampled_from(
    ["\n", "\x1b[31m", "\r", "\t", "  ", " ", "\\", "'", ": ", ", call ", " at ", "; no fault is set", "NCCL WARN ", "é", "語",
     "host:1:2 [0] NCCL INFO x", "ESC[0m", "^[[1m", "\x7f", "{x}", "%s", "\x80", " cannot ", " RCCL INFO ", "FLAGCX WARN y"]
)  # fmt: skip
_TEXT = st.lists(
    st.one_of(_PIECES, st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8)),
    max_size=5,
).map("".join)


def unescaped(text: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda m: chr(int(m[1], 16)), text)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_what_is_printed_is_what_the_scanner_reads(render: Render, data: st.DataObject) -> None:
    message, spelling = data.draw(st.sampled_from(SPELLINGS))
    values: Values = {}
    for name, kind in fields_of(message, spelling).items():
        if kind == "int":
            values[name] = data.draw(st.integers(-(2**63), 2**63 - 1))
        elif kind in ("uint", "hex", "ptr"):
            values[name] = data.draw(st.integers(0, 2**64 - 1))
        else:
            # An empty text cannot be told from none in a log line.
            values[name] = data.draw(_TEXT.filter(bool))
    line = render(message, spelling, values)
    assert not re.search(rb"[\x00-\x1f\x7f]", line)
    hit = load().match(line)
    assert hit is not None, line
    found, fields = hit
    assert found.name == message.name
    read = {name: unescaped(value) if isinstance(value, str) else value for name, value in fields.items()}
    assert read == values


@settings(deadline=None, max_examples=100)
@given(_TEXT)
def test_a_text_stays_one_record_in_a_whole_log(render: Render, text: str) -> None:
    message = load().by_name["record.unavailable"]
    body = render(message, 0, {"what": text or "x", "reason": text or "y"})
    path = Path(f"/proc/self/fd/{os.memfd_create('log')}")
    try:
        path.write_bytes(
            b"vm:10:11 [3] NCCL INFO comm 0x1 rank 0\n\n[2026-11-21 01:02:03] vm:10:11 [3] NCCL WARN " + body + b"\n"
        )
        names = [e.name for batch in events([path]) for e in batch if e.level == "WARN"]
    finally:
        os.close(int(path.name))
    assert names == ["record.unavailable"]


def test_long_text_is_cut_and_nothing_follows_the_cut(render: Render) -> None:
    message = load().by_name["fault.fired"]
    line = render(message, 0, {"action": "x" * 3000, "site": "s", "nth": 1, "rank": 0})
    assert len(line) == 2048 and line.endswith(b"x")


# ---- where lines go ----

PREFIX = rf"{re.escape(socket.gethostname().split('.')[0])}:(\d+):(\d+) \[0\] NCCL "
INFO = PREFIX + r"INFO record of process 2, rank 0, command test, begun now\n"
WARNING = rf"\n\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\] {PREFIX}WARN no record of this process is kept: test: why\n"


def log(driver: Path, *steps: str, **env: str) -> subprocess.CompletedProcess[str]:
    return compiled.run(driver, "log", *steps, env=compiled.environment(**env))


def test_lines_have_the_bytes_of_nccls(driver: Path) -> None:
    done = log(driver, "info", "warn:why", NCCL_DEBUG="INFO", TZ="UTC")
    match = re.fullmatch(INFO + WARNING, done.stdout)
    assert match, done.stdout
    assert len(set(match.groups())) == 1, "the first thread has the number of the process"
    assert "] NCCL" in done.stdout and not done.stderr


def test_lines_carry_the_device_of_their_thread(driver: Path) -> None:
    assert " [6] NCCL INFO record of process " in log(driver, "device:6", "info", PSM_LOG="info").stdout


@pytest.mark.parametrize(
    ("env", "printed"),
    [
        ({}, False),
        ({"NCCL_DEBUG": "VERSION"}, False),
        ({"NCCL_DEBUG": "WARN"}, False),
        ({"NCCL_DEBUG": "info"}, True),
        ({"NCCL_DEBUG": "TRACE"}, True),
        ({"NCCL_DEBUG": "nonsense"}, False),
        ({"PSM_LOG": "info"}, True),
    ],
)
def test_info_needs_a_level_and_warnings_do_not(driver: Path, env: dict[str, str], printed: bool) -> None:
    done = log(driver, "info", "warn:why", **env)
    assert bool(re.search(INFO, done.stdout)) == printed
    assert re.search(WARNING, done.stdout)


def test_closed_standard_output_gives_way_to_standard_error(driver: Path) -> None:
    done = log(driver, "close", "warn:why")
    assert re.fullmatch(WARNING, done.stderr)


def test_own_file_is_private_appended_to_and_named_by_host_and_process(driver: Path, tmp_path: Path) -> None:
    host = socket.gethostname().split(".")[0]
    done = log(driver, "info", "closeall", "info", "fork", "info", PSM_LOG="info", PSM_LOG_FILE=f"{tmp_path}/%h-%p.log")
    assert not done.stdout and not done.stderr
    files = sorted(tmp_path.iterdir(), key=lambda p: p.read_text().count("\n"))
    assert [p.read_text().count("\n") for p in files] == [1, 2], "a child of fork has its own"
    for path in files:
        lines = re.findall(INFO, path.read_text())
        assert {f"{host}-{pid}.log" for pid, _ in lines} == {path.name}
        assert path.stat().st_mode & 0o777 == 0o600


def test_own_file_that_cannot_be_opened_gives_way_to_standard_error(driver: Path, tmp_path: Path) -> None:
    done = log(driver, "warn:why", PSM_LOG_FILE=f"{tmp_path}/none/x.log")
    assert re.fullmatch(WARNING, done.stderr)


def test_nccls_file_is_written_through_its_own_descriptor(driver: Path, tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    name = f"{tmp_path}/nccl.log"
    done = log(
        driver, f"open:{name}", "nccl:one", "info", "nccl:two", "warn:why", "nccl:three", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=name
    )  # fmt: skip
    assert not done.stdout and not done.stderr
    assert re.fullmatch(f"one\n{INFO}two\n{WARNING}three\n", path.read_text()), path.read_text()


def test_lines_wait_for_nccls_file_even_where_an_old_one_lies(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "old.log").write_text("of an earlier run\n")
    name = str(tmp_path / "old.log")
    done = log(driver, "info", "warn:why", f"open:{name}", "nccl:one", "info", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=name)
    assert not done.stdout and not done.stderr
    assert re.fullmatch(f"one\n{INFO}{WARNING}{INFO}", (tmp_path / "old.log").read_text())


def test_nccls_file_name_is_expanded(driver: Path, tmp_path: Path) -> None:
    # The shell knows the pid that the driver will have.
    host = socket.gethostname().split(".")[0]
    with subprocess.Popen(
        ["sh", "-c", 'exec "$0" log "open:$1/nccl.$2.$$" info', driver, tmp_path, host],
        env=compiled.environment(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"{tmp_path}/nccl.%h.%p"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        out, _ = process.communicate(timeout=60)
    assert not out
    assert re.fullmatch(INFO, (tmp_path / f"nccl.{host}.{process.pid}").read_text())


def test_lines_for_a_file_that_never_comes_go_to_standard_error_at_exit(driver: Path, tmp_path: Path) -> None:
    done = log(driver, "info", "warn:why", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"{tmp_path}/never.log")
    assert re.fullmatch(INFO + WARNING, done.stderr)
    assert not list(tmp_path.iterdir()) and not done.stdout


def test_no_line_is_lost_when_many_wait(driver: Path, tmp_path: Path) -> None:
    name = f"{tmp_path}/nccl.log"
    done = log(driver, "many:100", f"open:{name}", "info", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=name)
    # Those that there is no room for are not kept back: they go to standard error at once.
    kept, direct = (Path(name).read_text(), done.stderr)
    assert kept.count("record of process ") == 65 and direct.count("record of process ") == 36


def test_child_of_fork_does_not_repeat_what_its_parent_keeps(driver: Path, tmp_path: Path) -> None:
    done = log(driver, "info", "fork", "info", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"{tmp_path}/never.log")
    assert len(re.findall(INFO, done.stderr)) == 2


def test_without_a_level_nccl_opens_no_file_and_nothing_waits_for_it(driver: Path, tmp_path: Path) -> None:
    done = log(driver, "warn:why", NCCL_DEBUG_FILE=f"{tmp_path}/never.log")
    assert re.fullmatch(WARNING, done.stdout)


def test_generator_refuses_what_c_cannot_print(tmp_path: Path) -> None:
    def generate(body: str) -> str:
        (tmp_path / "x.toml").write_text(body)
        command = [sys.executable, compiled.BASE / "messages.py", tmp_path / "x.toml", tmp_path / "x.h"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.stderr if done.returncode else ""

    entry = '[[message]]\nname = "a.b"\npattern = "{}"\n'
    assert not generate(entry.format("text {x:int} end"))
    assert not generate(entry.format("a {default:word} is no word of C"))
    assert "const char *default_" in (tmp_path / "x.h").read_text()
    assert "cannot print such a field" in generate(entry.format("{_:int}"))
    assert "nothing between two fields" in generate(entry.format("{a:word}{b:word}"))
    assert "both a_b" in generate(entry.format("one") + entry.format("two").replace("a.b", "a_b"))
    assert "level TRACE" in generate(entry.format("x") + 'level = "TRACE"\n')


def test_the_least_integer_is_read_as_it_is() -> None:
    hit = load().match(
        b"the record of process -9223372036854775808 was not closed: the process lived when this was read, "
        b"or died where it cannot be seen from here"
    )
    assert hit is not None and hit[1] == {"pid": -(2**63)}
