"""One process of the ``ranks`` fixture: python -m psmkit.testing.worker MODULE FILE FUNCTION ARGUMENTS."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psmkit.lab.rank import Rank, prepare


def _find(name: str, file: str, function: str) -> Callable[..., Any]:
    """Find the function in a test module, which pytest may have imported from outside the path."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or os.path.realpath(spec.origin) != os.path.realpath(file):
        spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, function)
    return found


def main() -> int:
    """Call the function and report its result or exception."""
    prepare()
    # Imports come before hello, from which the deadline counts.
    problem: BaseException | None = None
    try:
        function = _find(*sys.argv[1:4])
        arguments = pickle.loads(Path(sys.argv[4]).read_bytes())
    except BaseException as error:
        problem = error
    rank = Rank.of_environment()
    rank.stage("import" if problem else "call")
    try:
        if problem is not None:
            raise problem
        value = pickle.dumps(function(rank, *arguments)).hex()
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}".rstrip(": ") + f" ({Path(where.filename).name}:{where.lineno})"
        rank.report({"status": "failed", "text": said, "traceback": text})
        return 1
    rank.report({"status": "PSM_OK", "value": value})
    rank.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
