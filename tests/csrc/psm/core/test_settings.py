"""Settings from the environment: what is meant is taken, all else is an error that says what is meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]
NAMES = ("timeout", "stall", "steps", "buffer", "share", "zero_copy", "channels", "spin")
VARIABLES = (
    "PSM_TIMEOUT",
    "PSM_STALL_REPORT",
    "PSM_STEPS",
    "PSM_BUFFER_SIZE",
    "PSM_SHARE",
    "PSM_ZERO_COPY",
    "PSM_CHANNELS",
    "PSM_SPIN",
)


def read(process: ground.Ground) -> dict[str, int]:
    return dict(zip(NAMES, map(int, process.ask("settings")), strict=True))


def test_defaults(start: Start) -> None:
    assert read(start()) == {
        "timeout": 60_000,
        "stall": 10_000,
        "steps": 8,
        "buffer": 2 << 20,
        "share": 0,
        "zero_copy": 1,
        "channels": 2,
        "spin": 50,
    }


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PSM_TIMEOUT", "5", "timeout", 5000),
        ("PSM_TIMEOUT", "0.25", "timeout", 250),
        ("PSM_STALL_REPORT", "0", "stall", 0),
        ("PSM_STEPS", "64", "steps", 64),
        ("PSM_BUFFER_SIZE", "512", "buffer", 512),
        ("PSM_BUFFER_SIZE", "64K", "buffer", 65536),
        ("PSM_BUFFER_SIZE", "4m", "buffer", 4 << 20),
        ("PSM_BUFFER_SIZE", "1G", "buffer", 1 << 30),
        ("PSM_SHARE", "cuMem", "share", 4),
        ("PSM_SHARE", "posix", "share", 3),
        ("PSM_SHARE", "5", "share", 5),
        ("PSM_ZERO_COPY", "always", "zero_copy", 2),
        ("PSM_ZERO_COPY", "0", "zero_copy", 0),
        ("PSM_CHANNELS", "16", "channels", 16),
        ("PSM_SPIN", "0", "spin", 0),
        ("PSM_STEPS", "", "steps", 8),
    ],
)
def test_a_setting_is_taken(start: Start, variable: str, text: str, name: str, value: int) -> None:
    assert read(start(**{variable: text}))[name] == value


@pytest.mark.parametrize(
    ("variable", "text", "meant"),
    [
        ("PSM_TIMEOUT", "0", "seconds from 0.001"),
        ("PSM_TIMEOUT", "-1", "seconds from"),
        ("PSM_TIMEOUT", "5s", "seconds from"),
        ("PSM_TIMEOUT", "1.", "seconds from"),
        ("PSM_TIMEOUT", "0.0001", "seconds from"),
        ("PSM_STEPS", "0", "a number from 1 to 64"),
        ("PSM_STEPS", "65", "a number from 1 to 64"),
        ("PSM_STEPS", "8.0", "a number from 1 to 64"),
        ("PSM_BUFFER_SIZE", "4MB", "512K, 4M or 1G"),
        ("PSM_BUFFER_SIZE", "18446744073709551617", "512K, 4M or 1G"),
        ("PSM_BUFFER_SIZE", "17179869184G", "512K, 4M or 1G"),
        ("PSM_BUFFER_SIZE", "63", "512K, 4M or 1G"),
        ("PSM_BUFFER_SIZE", "1001", "a multiple of PSM_STEPS"),
        ("PSM_BUFFER_SIZE", "256", "64 bytes per slot"),
        ("PSM_SHARE", "ipc", "auto, same-process, memfd, posix, cumem, cuda-ipc"),
        ("PSM_SHARE", "6", "or its number"),
        ("PSM_ZERO_COPY", "yes", "never, registered, always"),
        ("PSM_CHANNELS", "0", "a number from 1 to 64"),
        ("PSM_SPIN", "1000001", "a number from 0 to 1000000"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_what_is_meant(
    start: Start, variable: str, text: str, meant: str
) -> None:
    with pytest.raises(ground.GroundError) as error:
        read(start(**{variable: text}))
    assert error.value.status == "PSM_ERR_INVALID"
    assert variable in error.value.text and text in error.value.text and meant in error.value.text


@settings(deadline=None, max_examples=200)
@given(variable=st.sampled_from(VARIABLES), text=st.text(st.sampled_from("0123456789.KMGkmg-+xeauto "), max_size=24))
def test_no_text_is_taken_for_a_value_out_of_range(settings_process: ground.Ground, variable: str, text: str) -> None:
    text = text.replace(" ", "_") or "_"
    settings_process.ask("setenv", variable, text)
    try:
        found = read(settings_process)
    except ground.GroundError as error:
        assert error.status == "PSM_ERR_INVALID" and error.text
    else:
        assert 1 <= found["timeout"] <= 86_400_000 and found["stall"] <= 86_400_000
        assert 1 <= found["steps"] <= 64 and 1 <= found["channels"] <= 64
        assert found["share"] <= 5 and found["zero_copy"] <= 2 and found["spin"] <= 1_000_000
        assert 64 * found["steps"] <= found["buffer"] <= 1 << 32 and found["buffer"] % found["steps"] == 0
    finally:
        settings_process.ask("setenv", variable)


@pytest.fixture(scope="module")
def settings_process(ground_program, tmp_path_factory):  # type: ignore[no-untyped-def]
    with ground.Ground(ground_program, tmp_path_factory.mktemp("settings") / "log") as process:
        yield process


def test_a_caller_with_a_shorter_struct_gets_what_fits(start: Start) -> None:
    assert start().ask("old-settings") == ["PSM_OK", "12", "60000", "1"]
