"""A rank with a variant in Python: python -m psmkit.lab.variant_rank WHERE NAME [variants]. The rank itself is psm_rank, in this process."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from psmkit.lab.rank import end_with_parent, prepare
from psmkit.model.programs import tree
from psmkit.transport import Variant, variants

_NAME = "psmkit_stranger"  # of a module that is a file


class _NoVariantError(LookupError):
    """The text says what the module has instead, and what to do."""


def _load(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).absolute()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module


def choose(where: str, name: str) -> Variant:
    """Load a module, and find its variant: a name that it registers, or one of its own that is a variant or makes one.

    Raises:
        LookupError: it has no such variant, or without a name not exactly one.
    """
    before = set(variants())
    module = _load(where)
    made = getattr(module, name, None) if name else None
    if callable(made) and not isinstance(made, Variant):
        made = made()
    if isinstance(made, Variant):
        return made
    own = {key: one for key, one in variants().items() if key not in before}
    if name in own:
        return own[name]
    if len(own) == 1 and not name:
        return next(iter(own.values()))
    if own:
        lacks = f"no variant {name!r}: " if name else ""
        raise _NoVariantError(f"{lacks}it registers {', '.join(own)}: name one of them as {_short(where)}:NAME")
    lacks = f"no variant {name!r}, and it registers none" if name else "it registers no variant"
    raise _NoVariantError(f"{lacks}: call psmkit.transport.register_variant() in it, or name a function that does")


def _short(where: str) -> str:
    return Path(where).name if where.endswith(".py") else where


def load(where: str, name: str, python: bool) -> Variant:
    """The variant of a module, or of a library, in this process."""
    if python:
        return choose(where, name)
    before = set(variants())
    ctypes.CDLL(where)
    own = {key: one for key, one in variants().items() if key not in before}
    return own[name] if name else next(iter(own.values()))


def _said(error: Exception, where: str) -> str:
    """One line, which the face of psmkit shows: the error, and the line of the variant's own code that it came from."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{where}.".startswith(f"{error.name}."):
        return f"{error.msg}; expected FILE.py:NAME, MODULE:NAME or libNAME.so[:NAME]"
    if isinstance(error, _NoVariantError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}; correct {Path(error.filename or where).name}:{error.lineno}"
    ours = str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((ours, "<frozen"))]
    own = [f for f in frames if where.endswith(".py") and f.filename == str(Path(where).absolute())] or frames
    at = f"; correct {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"


def main() -> int:
    """Run psm_rank with what is left of the arguments."""
    words = sys.argv[3:]
    end_with_parent() if words else prepare()
    sys.path.insert(0, os.getcwd())
    try:
        chosen = choose(*sys.argv[1:3])
    except Exception as error:
        print(_said(error, sys.argv[1]), file=sys.stderr)
        return 2
    if words == ["variants"]:
        print(json.dumps({"chosen": chosen.name}), flush=True)
    program = ctypes.CDLL(str(tree() / "lib" / "libpsm_rank.so"))
    arguments = [b"psm_rank", *(word.encode() for word in words)]
    return int(program.psm_rank_main(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)))


if __name__ == "__main__":
    sys.exit(main())
