"""The child process that parses foreign files, with limits of time and memory."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from typing import Any

from psmkit.model.errors import PsmkitError

__all__ = ["AuditError", "ask", "check_needs"]

_SLACK = 2.0  # seconds in which the child may start and write its answer
_NEEDS = {"types": (("drgn", "drgn"),), "sources": (("clang", "libclang"),), "ways": (("clang", "libclang"),)}


class AuditError(PsmkitError):
    """A file cannot be audited. One line with the reason and the remedy."""


def ask(what: str, request: dict[str, Any], name: str, deadline: float) -> dict[str, Any]:
    """The answer of a child to a request.

    Args:
        what: ``types``, ``sources`` or ``ways``.
        request: plain data.
        name: of the file, for errors.
        deadline: seconds.

    Raises:
        AuditError: the child could not read the file, or did not in time.
    """
    check_needs(what)
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("DRGN_", "DEBUGINFOD_"))}
    command = [sys.executable, "-P", "-m", "psmkit.audit", what, str(deadline)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env={**plain, "DRGN_DISABLE_PLUGINS": "*"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline + _SLACK,
        )
    except subprocess.TimeoutExpired:
        raise AuditError(f"{name}: it was not read within {deadline:g} s") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise AuditError(f"{name}: its debug information cannot be read: {_death(done.returncode, done.stderr)}")
    if "error" in answer:
        raise AuditError(f"{name}: {answer['error']}")
    return answer


def check_needs(what: str) -> None:
    """Refuse a request whose package is not installed.

    Raises:
        AuditError: it is not.
    """
    for module, package in _NEEDS[what]:
        if importlib.util.find_spec(module) is None:
            raise AuditError(f"this audit needs {package}: pip install 'psmkit[audit]'")


def _death(status: int, said: str) -> str:
    if status == -signal.SIGXCPU:
        return "it takes too long"
    if status < 0:
        return f"the reader died by {signal.Signals(-status).name}"
    lines = said.strip().splitlines()
    return lines[-1][:300] if lines else f"the reader ended with status {status}"
