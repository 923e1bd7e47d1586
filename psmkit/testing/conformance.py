"""The conformance suite as tests of pytest: one test a check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["transport_conformance"]


def transport_conformance(variant: str, *, only: Sequence[str] = (), deadline: float = 60.0) -> Callable[..., None]:
    """A test of a transport's variant, with one case for each check of ``psmkit conformance --list``::

        from psmkit.testing import transport_conformance

        test_my_transport = transport_conformance("my_transport.py:mine")

    Args:
        variant: as ``psmkit conformance`` takes it. A file is looked for beside the test, then in the working directory.
        only: names of checks; empty: all. A variant that is wrong on purpose has one check, ``as-declared``.
        deadline: seconds after which a check has hung.

    Raises:
        LabError: the variant cannot be loaded, or there is no such check.
    """
    # Imported late, so that a session without such tests does not pay for it.
    import pytest

    from psmkit.conformance import run, selected
    from psmkit.lab.strangers import find

    beside = Path(str(sys._getframe(1).f_globals.get("__file__", ""))).parent / variant.partition(":")[0]
    stranger = find(str(beside) + variant[len(variant.partition(":")[0]) :] if beside.is_file() else variant)

    @pytest.mark.parametrize("check", selected(stranger, only))
    def test(check: str, tmp_path: Path) -> None:
        done: Any = run(stranger, only=(check,), deadline=deadline, folder=tmp_path / "evidence")
        (result,) = done.results
        if result.outcome == "skipped":
            pytest.skip(result.text)
        if result.outcome == "failed":
            pytest.fail(
                f"{variant}: {check}: {result.how}: {result.text}\n{result.check.text}\nnext: {result.next_step}\n"
                f"evidence: psmkit lab report {result.folder}",
                pytrace=False,
            )

    return test
