"""``transport_conformance``: each check is a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.lab.cuda import LabError
from psmkit.testing import transport_conformance

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
MINE = ROOT / "examples" / "my_transport.py"

test_right_variant = transport_conformance(f"{MINE}:mine", only=("connect", "settings-differ"))
test_wrong_variant = transport_conformance(f"{MINE}:careless")


def test_failing_check_is_a_failing_test_with_what_to_do(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        mine="""
            from psmkit import transport
            from psmkit.proxy import Handlers
            sends = Handlers(free=lambda connection: None, base=transport.variant().send)
            transport.register_variant("leaks", "Free is empty", send=sends)
        """,
        test_it="""
            from psmkit.testing import transport_conformance
            test_leaks = transport_conformance("mine.py:leaks", only=("connect",))
        """,
    )
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "test_it.py", timeout=120)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*mine.py:leaks: connect: leak:*", "next: *", "evidence: psmkit lab report *"])


def test_unknown_variants_and_checks_are_refused_where_they_are_named() -> None:
    with pytest.raises(LabError, match="no such file"):
        transport_conformance("nothing.py:mine")
    with pytest.raises(LabError, match="unknown check 'size'"):
        transport_conformance(f"{MINE}:mine", only=("size",))
