"""For all tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, however long they take: a busy machine fails no test, and a change no test of something else.
settings.register_profile("psmkit", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("psmkit")

# Output is 100 columns wide where nobody says otherwise; pytest-xdist does.
os.environ.pop("COLUMNS", None)
if any(os.environ.get(name, "").startswith("zh") for name in ("LC_ALL", "LC_MESSAGES", "LANG")):
    os.environ["LC_ALL"] = "C.UTF-8"  # tests read English

# With a real driver loaded, hostcuda works only if PSM_HOSTCUDA=force hides the GPUs. Tests over a real CUDA need them.
if os.path.exists("/proc/driver/nvidia/version") and not os.environ.get("PSM_TEST_CUDART"):
    os.environ.setdefault("PSM_HOSTCUDA", "force")

# Started in the background, a shell's child ignores SIGINT, and so do its children: tests that interrupt them would wait.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Under ASan (scripts/sanitize.sh) these are meant to end by the very signal that ASan takes for itself. Those of hostcuda: its conftest.
_NOT_UNDER_ASAN = (
    "tests/lab/test_emulation.py::test_strict_mode_keeps_the_host_from_device_memory",
    "tests/lab/test_lab_run.py::test_rank_that_is_sent_a_fatal_signal_dies_of_it",
    "tests/lab/test_nccl.py::test_a_crash_is_told_with_the_functions_that_it_was_in",
    "tests/testing/test_plugin.py::test_death_fails_the_test_with_the_signal",
)


@pytest.fixture
def spin() -> None:
    """Skips the test where there is no spin."""
    from psmkit.plan.model import ModelError, find_spin

    try:
        find_spin()
    except ModelError as error:
        pytest.skip(str(error))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        return
    for item in items:
        if item.nodeid.startswith(_NOT_UNDER_ASAN):
            item.add_marker(pytest.mark.skip(reason="cannot run below AddressSanitizer"))
