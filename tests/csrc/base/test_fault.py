"""Faults: the grammar, which call is struck, and what the actions do."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.csrc.base import compiled


class _Error(ctypes.Structure):
    _fields_ = (("position", ctypes.c_size_t), ("text", ctypes.c_char * 200))


class WrongError(Exception):
    """What the parser complains about."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(f"{position}: {text}")
        self.position, self.text = position, text


Parse = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def parse(tmp_path_factory: pytest.TempPathFactory) -> Parse:
    """Text to faults in their normal form."""
    path = compiled.compile_c(
        tmp_path_factory.mktemp("parse") / "parse.so",
        [compiled.BASE / "fault_parse.c"],
        ["-shared", "-fPIC", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"],
    )
    lib = ctypes.CDLL(str(path))
    lib.psm_fault_parse.restype = ctypes.c_void_p
    lib.psm_fault_parse.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Error)]
    lib.psm_fault_set_size.restype = ctypes.c_size_t
    lib.psm_fault_set_size.argtypes = [ctypes.c_void_p]
    lib.psm_fault_format.restype = ctypes.c_size_t
    lib.psm_fault_format.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    lib.psm_fault_set_free.argtypes = [ctypes.c_void_p]

    def parsed(text: str) -> list[str]:
        error = _Error()
        found = lib.psm_fault_parse(text.encode(), ctypes.byref(error))
        if not found:
            raise WrongError(error.position, error.text.decode())
        out = []
        for i in range(lib.psm_fault_set_size(found)):
            size = lib.psm_fault_format(found, i, None, 0)
            buffer = ctypes.create_string_buffer(size + 1)
            assert lib.psm_fault_format(found, i, buffer, size + 1) == size
            out.append(buffer.value.decode())
        lib.psm_fault_set_free(found)
        return out

    return parsed


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", []),
        (" ; ;", []),
        ("cudaMemcpyAsync:error=700,rank=2,nth=70", ["cudaMemcpyAsync:error=700:rank=2:nth=70"]),
        ("a:error=-5", ["a:error=-5"]),
        ("a:error=cudaErrorIllegalAddress", ["a:error=cudaErrorIllegalAddress"]),
        ("a:hang", ["a:hang"]),
        ("cuda*:slow=10us:nth=3+", ["cuda*:slow=10us:nth=3+"]),
        ("*:late=2s", ["*:late=2s"]),
        ("a:slow=2000ms", ["a:slow=2s"]),
        ("a:kill", ["a:kill=9"]),
        ("a:kill=SIGSEGV", ["a:kill=11"]),
        ("a:kill=TERM", ["a:kill=15"]),
        ("net.send:drop:peer=3:nth=3/5", ["net.send:drop:peer=3:nth=3/5"]),
        ("a:short=16", ["a:short=16"]),
        ("a:corrupt:p=0.25:seed=7", ["a:corrupt:p=0.250000000:seed=7"]),
        ("proxy.response:duplicate;uds.reply:reorder", ["proxy.response:duplicate", "uds.reply:reorder"]),
        ("net.isend:close:rank=1:comm=2", ["net.isend:close:rank=1:comm=2"]),
        ("net.test:stall", ["net.test:stall"]),
        ("net.test:stall=2s:nth=3", ["net.test:stall=2s:nth=3"]),
        ("net.isend:delay=5ms;net.isend:truncate=16", ["net.isend:slow=5ms", "net.isend:short=16"]),
        (" a : error = 1 , op = Setup ; b:drop ", ["a:error=1:op=Setup", "b:drop"]),
    ],
)
def test_text_is_read(parse: Parse, text: str, faults: list[str]) -> None:
    assert parse(text) == faults


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("a", 1, "expected ':' and an action"),
        ("a:", 2, "expected an action"),
        ("a:explode", 2, "found 'explode'"),
        ("a,hang", 1, "expected ':' after the site"),
        (":hang", 0, "expected a site"),
        ("a b:hang", 1, "expected a site of letters"),
        ("a*b:hang", 1, "expected a site of letters"),
        ("a:error", 7, "expected '=' and a value after error"),
        ("a:error=", 8, "expected an error number or name"),
        ("a:error=1x", 8, "expected an error number or name"),
        ("a:hang=3", 7, "hang takes no value"),
        ("a:slow=5", 7, "expected a duration"),
        ("a:slow=99999999999s", 7, "expected a duration"),
        ("a:kill=NOPE", 7, "expected a signal"),
        ("a:stall=2", 8, "expected a duration"),
        ("a:delay", 7, "expected '=' and a value after slow"),
        ("a:close=2", 8, "close takes no value"),
        ("a:hang:comm=-1", 12, "expected the number of a communicator"),
        ("a:short=-1", 8, "expected a number of bytes"),
        ("a:hang:nth=0", 11, "counted from 1"),
        ("a:hang:nth=3/0", 11, "expected nth=3"),
        ("a:hang:nth=3-", 11, "expected nth=3"),
        ("a:hang:rank=-1", 12, "expected the number of a rank"),
        ("a:hang:rank=1:rank=2", 14, "given twice"),
        ("a:hang:p=1.5", 9, "expected a probability"),
        ("a:hang:p=.", 9, "expected a probability"),
        ("a:hang:seed=1", 0, "seed= has no effect without p="),
        ("a:hang:color=red", 7, "expected a key"),
        ("a:hang:op", 9, "expected '=' and a value after op"),
        ("a:hang;b:hang:", 14, "expected a key"),
        ("x" * 64 + ":hang", 0, "longer than 63 bytes"),
        (";".join(["a:hang"] * 257), 0, "more than 256 faults"),
    ],
)
def test_errors_name_the_position_and_what_was_expected(parse: Parse, text: str, position: int, says: str) -> None:
    with pytest.raises(WrongError) as caught:
        parse(text)
    assert says in caught.value.text
    assert caught.value.position == position


_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_./-]{0,62}", fullmatch=True)
_ACTIONS = st.one_of(
    st.integers(-(2**31) + 1, 2**31 - 1).map("error={}".format),
    _NAMES.map("error={}".format),
    st.sampled_from(["hang", "drop", "corrupt", "duplicate", "reorder"]),
    st.tuples(st.sampled_from(["slow", "late"]), st.integers(1, 999), st.sampled_from(["ns", "us", "ms", "s"])).map(
        lambda t: f"{t[0]}={t[1]}{t[2]}"
    ),
    st.integers(1, 64).map("kill={}".format),
    st.integers(0, 2**63 - 1).map("short={}".format),
)


@st.composite
def faults(draw: st.DrawFn) -> str:
    """A fault in its normal form."""
    site = draw(st.one_of(_NAMES, _NAMES.map("{}*".format), st.just("*")))
    parts = [site, draw(_ACTIONS)]
    if draw(st.booleans()):
        parts.append(f"rank={draw(st.integers(0, 2**31 - 1))}")
    if draw(st.booleans()):
        parts.append(f"peer={draw(st.integers(0, 2**31 - 1))}")
    if draw(st.booleans()):
        parts.append(f"op={draw(_NAMES)}")
    if draw(st.booleans()):
        every = draw(st.one_of(st.just(""), st.just("+"), st.integers(2, 2**64 - 1).map("/{}".format)))
        parts.append(f"nth={draw(st.integers(1, 2**64 - 1))}{every}")
    if draw(st.booleans()):
        parts.append(f"p=0.{draw(st.integers(0, 999_999_999)):09}")
        if seed := draw(st.integers(0, 2**64 - 1)):
            parts.append(f"seed={seed}")
    return ":".join(parts)


@settings(deadline=None)
@given(st.lists(faults(), max_size=5), st.sampled_from([":", ","]), st.sampled_from([";", " ; ", ";;"]))
def test_normal_form_is_a_fixed_point(parse: Parse, given_: list[str], separator: str, between: str) -> None:
    once = parse(between.join(f.replace(":", separator).replace(separator, ":", 1) for f in given_))
    assert len(once) == len(given_)
    assert parse(";".join(once)) == once
    for text, normal in zip(given_, once, strict=True):
        # Only durations have several spellings.
        if "slow=" not in text and "late=" not in text:
            assert normal == text


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=60))
def test_any_text_is_read_or_refused_with_a_place_in_it(parse: Parse, text: str) -> None:
    expect_read_or_refused(parse, text)


def expect_read_or_refused(parse: Parse, text: str) -> None:
    """The property: a fixed point, or an error that points into the text."""
    try:
        once = parse(text)
    except WrongError as wrong:
        assert 0 <= wrong.position <= len(text.encode())
        assert wrong.text
    else:
        assert parse(";".join(once)) == once


@settings(deadline=None)
@given(faults(), st.data())
def test_damaged_faults_are_read_or_refused(parse: Parse, text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    expect_read_or_refused(parse, text[:at] + data.draw(st.sampled_from([*":,;=*+9 ", ""])) + text[at + 1 :])


# ---- which call is struck ----


def hits(
    driver: Path,
    faults: str,
    site: str = "test.alpha",
    count: int = 20,
    *,
    rank=-1,
    peer=-1,
    op="x",
    cannot=0,
    env=None,
):  # type: ignore[no-untyped-def]
    """The calls that are struck as (number, action, value), and the log."""
    settings = compiled.environment(PSM_FAULTS=faults, PSM_LOG_FILE="/dev/stderr", **(env or {}))
    done = compiled.run(driver, "hits", site, str(count), str(rank), str(peer), op, str(cannot), env=settings)
    assert done.returncode == 0
    return [(int(a), b, int(c)) for a, b, c in map(str.split, done.stdout.splitlines())], done.stderr


def numbers(driver: Path, faults: str, **options: object) -> list[int]:
    return [hit[0] for hit in hits(driver, faults, **options)[0]]


@pytest.mark.parametrize(
    ("faults", "struck"),
    [
        ("test.alpha:hang:nth=3", [3]),
        ("test.alpha:hang:nth=18+", [18, 19, 20]),
        ("test.alpha:hang:nth=3/5", [3, 8, 13, 18]),
        ("test.alpha:hang", list(range(1, 21))),
        ("test.*:hang:nth=2", [2]),
        ("*:hang:nth=2", [2]),
        ("test.alph:hang", []),
        ("test.alpha2:hang", []),
        ("other*:hang", []),
        ("test.alpha:hang:p=0.0", []),
        ("test.alpha:hang:p=1:nth=4", [4]),
        ("test.alpha:hang:rank=3", []),
        ("test.alpha:hang:peer=3", []),
        ("test.alpha:hang:op=y", []),
        ("test.alpha:hang:op=x:nth=1", [1]),
        ("test.alpha:hang:nth=1;test.alpha:slow=1us:nth=1;test.alpha:kill:nth=4", [1, 4]),
    ],
)
def test_calls_are_counted_from_one(driver: Path, faults: str, struck: list[int]) -> None:
    assert numbers(driver, faults) == struck


def test_rank_is_that_of_the_call_or_else_of_the_process(driver: Path) -> None:
    fault = "test.alpha:hang:nth=1:rank=2"
    assert numbers(driver, fault, rank=2) == [1]
    assert numbers(driver, fault, rank=1, env={"PSM_RANK": "2"}) == []
    assert numbers(driver, fault, env={"OMPI_COMM_WORLD_RANK": "2"}) == [1]
    assert numbers(driver, fault, env={"PSM_RANK": "0", "OMPI_COMM_WORLD_RANK": "2"}) == []
    assert numbers(driver, fault, env={"RANK": "2x"}) == []
    assert numbers(driver, "test.alpha:hang:nth=2:peer=5", peer=5) == [2]


def test_the_first_fault_strikes_and_all_count(driver: Path) -> None:
    found, log = hits(driver, "test.alpha:error=1:nth=2;test.alpha:error=2:nth=2+", count=4)
    assert found == [(2, "error", 1), (3, "error", 2), (4, "error", 2)]
    assert "NCCL WARN PSM_FAULTS: error at test.alpha, call 2\n" in log


def test_chance_is_the_same_in_each_run_and_differs_by_seed_site_and_rank(driver: Path) -> None:
    def sample(seed: int, site: str = "test.alpha", rank: int = 0) -> list[int]:
        return numbers(driver, f"*:drop:p=0.3:seed={seed}", site=site, rank=rank, count=400)

    base = sample(1, "test.beta")
    assert base == sample(1, "test.beta")
    others = [sample(2, "test.beta"), sample(1, "test.made"), sample(1, "test.beta", 1)]
    assert all(other != base for other in others)
    # 400 calls at 0.3: within six standard deviations of 120.
    assert all(65 <= len(found) <= 175 for found in (base, *others))


def test_error_names_are_resolved_by_the_caller(driver: Path) -> None:
    assert hits(driver, "test.alpha:error=testErrorIllegal:nth=1")[0] == [(1, "error", 700)]
    found, log = hits(driver, "test.alpha:error=testErrorOops")
    assert not found
    assert log.count("PSM_FAULTS: test.alpha has no error testErrorOops; this fault is ignored\n") == 1


def test_what_a_site_cannot_do_is_said_once_and_not_done(driver: Path) -> None:
    found, log = hits(driver, "test.alpha:drop")
    assert not found
    assert log.count("PSM_FAULTS: test.alpha does not support drop; this fault is ignored\n") == 1
    found, log = hits(driver, "test.*:drop")
    assert not found and not log, "a star is not meant for every site"
    assert hits(driver, "test.beta:short=5:nth=2", site="test.beta")[0] == [(2, "short", 5)]


def test_what_a_call_cannot_do_does_not_concern_it(driver: Path) -> None:
    corrupt = 1 << 8  # PSM_FAULT_CAN(PSM_FAULT_CORRUPT)
    fault = "test.beta:corrupt:nth=1;test.beta:slow=1us:nth=2"
    assert hits(driver, fault, site="test.beta", count=3)[0] == [(1, "corrupt", 0), (2, "slow", 1000)]
    found, log = hits(driver, fault, site="test.beta", count=3, cannot=corrupt)
    assert found == [(2, "slow", 1000)] and "cannot corrupt" not in log


def test_wrong_text_is_said_once_and_sets_no_fault(driver: Path) -> None:
    found, log = hits(driver, "test.alpha:hang;test.alpha:explode")
    assert not found
    assert log.count("NCCL WARN PSM_FAULTS is wrong at byte 27: expected an action") == 1


# ---- what the actions do ----


def test_slow_waits_before_and_late_after(driver: Path) -> None:
    def times(fault: str) -> tuple[int, int]:
        done = compiled.run(driver, "act", env=compiled.environment(PSM_FAULTS=f"test.alpha:{fault}"))
        words = done.stdout.split("struck ")[1].split()
        return int(words[words.index("before") + 1]), int(words[words.index("after") + 1])

    # A wait is at least as long as asked for; how much longer is the machine's affair.
    before, after = times("slow=30ms")
    assert before >= 30_000_000
    before, after = times("late=30ms")
    assert after >= 30_000_000


@pytest.mark.parametrize("name", ["KILL", "SEGV", "ABRT"])
def test_kill_ends_the_process_by_the_signal(driver: Path, name: str) -> None:
    env = compiled.environment(PSM_FAULTS=f"test.alpha:kill={name}", ASAN_OPTIONS="handle_segv=0:handle_abort=0")
    done = compiled.run(driver, "act", env=env)
    assert done.returncode == -getattr(signal, f"SIG{name}")
    assert "PSM_FAULTS: kill at test.alpha, call 1, rank 3\n" in done.stdout


@pytest.mark.parametrize("ending", [signal.SIGUSR2, signal.SIGHUP])
def test_hang_lets_signal_handlers_run_and_ends_on_abort(driver: Path, ending: signal.Signals) -> None:
    with subprocess.Popen(
        [driver, "act"],
        stdout=subprocess.PIPE,
        text=True,
        env=compiled.environment(PSM_FAULTS="test.alpha:hang"),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("PSM_FAULTS: hang at test.alpha, call 1, rank 3\n"):
                break
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "signal\n"
        assert process.poll() is None, "a signal does not end the hang"
        process.send_signal(ending)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "PSM_FAULTS: the hang at test.alpha was ended by an abort\n" in rest
    assert "struck 1 aborted 1" in rest and "signals 1" in rest


def test_binary_lists_its_sites(driver: Path) -> None:
    with driver.open("rb") as file:
        section = ELFFile(file).get_section_by_name("psm_sites")
        data = section.data()
    found = {}
    for at in range(0, len(data), 256):
        assert data[at : at + 4] == b"SITE"
        actions = int.from_bytes(data[at + 8 : at + 12], "little")
        name, text = (part.split(b"\0")[0].decode() for part in (data[at + 16 : at + 80], data[at + 80 : at + 256]))
        found[name] = (actions, text)
    hang, drop = 1 << 2, 1 << 6
    assert set(found) == {"test.alpha", "test.beta"}
    assert found["test.alpha"][1] == "A call that can fail."
    assert found["test.alpha"][0] & hang and not found["test.alpha"][0] & drop
    assert found["test.beta"][0] & drop
