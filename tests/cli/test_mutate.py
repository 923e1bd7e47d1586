"""``psmkit mutate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from psmkit.conformance.mistakes import MISTAKES
from tests.conformance import strangers as written
from tests.conformance.test_mistakes import SMALL, VARIANT


def test_command_line_scores_and_refuses(psmkit_cli: Any) -> None:
    command = ["--", sys.executable, "-c", "raise SystemExit(0)"]
    done = psmkit_cli("mutate", "--only", "lost-copy", VARIANT, *command)
    assert done.status == 2 and "never uses the transport" in done.err
    done = psmkit_cli("mutate", VARIANT, "--", sys.executable, "-c", "raise SystemExit(4)")
    assert done.status == 2 and "fails without a mistake: exit status 4" in done.err
    done = psmkit_cli("mutate", VARIANT)
    assert done.status == 2 and "expected VARIANT -- COMMAND" in done.err
    done = psmkit_cli("mutate", f"{Path(written.__file__)}:honest", *command)
    assert done.status == 2 and "is declared wrong" in done.err
    done = psmkit_cli("mutate", "--only", "nothing", VARIANT, *command)
    assert done.status == 2 and "expected one of forgotten-event" in done.err
    done = psmkit_cli("mutate", "--list", "--format", "json")
    assert {row["mistake"] for row in json.loads(done.out)} == {mistake.name for mistake in MISTAKES}


def test_report_names_what_is_missed(psmkit_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "tests.py").write_text(SMALL)
    done = psmkit_cli(
        "mutate", "--only", "wrong-size", VARIANT, "--", sys.executable, str(tmp_path / "tests.py"), VARIANT
    )
    assert (
        done.status == 1 and "0 of 1 caught" in done.out and "next: write tests that fail with wrong-size" in done.out
    )
