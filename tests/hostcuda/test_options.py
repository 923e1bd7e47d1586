"""Environment variables of hostcuda: a value that it does not know is told, and the default holds."""

from __future__ import annotations

import pytest

from tests.hostcuda.conftest import Child, emulated

pytestmark = emulated


@pytest.mark.parametrize(
    ("variable", "value", "taken"),
    [
        ("PSM_HOSTCUDA_STRICT", "no", "1"),
        ("PSM_HOSTCUDA_INLINE", "off", "1"),
        ("PSM_HOSTCUDA_HOST_FUNCTIONS", "one", "concurrent"),
        ("PSM_HOSTCUDA_SANITIZE", "errors", "off"),
        ("PSM_HOSTCUDA", "yes", "0"),
    ],
)
def test_unknown_value_of_an_option_is_told(child: Child, variable: str, value: str, taken: str) -> None:
    said = child("ok.cudaFree(ffi.NULL)", env={variable: value}).stdout
    assert said.count(f"hostcuda: {variable} must be ") == 1
    assert f"found '{value}': using {taken}" in said


def test_known_values_are_silent(child: Child) -> None:
    env = {
        "PSM_HOSTCUDA_STRICT": "0",
        "PSM_HOSTCUDA_INLINE": "1",
        "PSM_HOSTCUDA_HOST_FUNCTIONS": "serial",
        "PSM_HOSTCUDA_SANITIZE": "off",
        "PSM_HOSTCUDA": "force",
    }
    assert not child("ok.cudaFree(ffi.NULL)", env=env).stdout


def test_patience_that_is_no_number_is_told(child: Child) -> None:
    code = """
    run = ffi.callback("void(void *)")(lambda _: None)
    ok.cudaLaunchHostFunc(ffi.NULL, run, ffi.NULL)
    ok.cudaDeviceSynchronize()
    """
    said = child(code, env={"PSM_STALL_REPORT": "long"}).stdout
    assert "PSM_STALL_REPORT must be seconds, 0 for never, found 'long': using 10" in said
