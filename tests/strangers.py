"""Score psmkit on labelled logs: ``python -m tests.strangers FOLDER``, where ``labels.toml`` describes each ``NAME.log``.

tests/data/strangers/README.md explains the labels. The logs of strangers are not in the repository, so this needs a folder of your own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

_Label = dict[str, Any]


def _identity(label: object) -> dict[str, str]:
    """The parts of a culprit as labels name it: a table, or ``rank 3``, ``pid 17``, ``host a``; other words name a host or a rank by tag."""
    if isinstance(label, dict):
        return {str(key): str(value) for key, value in label.items()}
    kind, _, value = str(label).partition(" ")
    return {kind: value} if value and kind in ("rank", "pid", "host", "device") else {"host": str(label)}


def _address(culprit: dict[str, Any], label: object) -> bool:
    """Whether the label is an address with a port that the culprit's text has, and its host the culprit's: psmkit names the host."""
    host, _, port = str(label).rpartition(":")
    return port.isdigit() and culprit["host"] == host and re.search(rf"\b{port}\b", culprit["why"]) is not None


def _is(culprit: dict[str, Any], label: object) -> bool:
    seen = {
        "rank": {culprit["rank"], culprit["global_rank"]},
        "pid": {culprit["pid"]},
        "host": {culprit["host"]},
        "device": {culprit["device"], culprit["gpu"]},  # a label may give the PCI address
    }
    return all(
        value in {str(part) for part in seen[key] if part is not None} for key, value in _identity(label).items()
    )


def _any_is(culprits: list[dict[str, Any]], labels: list[object]) -> bool:
    return any(_is(culprit, label) or _address(culprit, label) for culprit in culprits for label in labels)


def _analyze(log: Path) -> dict[str, Any]:
    program = Path(sys.executable).with_name("psmkit")
    done = subprocess.run([program, "analyze", "--format", "json", log], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        return {"verdict": "refused", "reason": done.stderr.strip().splitlines()[-1], "culprits": []}
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _judge(label: _Label, report: dict[str, Any]) -> tuple[str, str]:
    """Of the verdict: right, wrong, missed (the log decides it) or undecided. Of the culprit: named, missed, wrong or none."""
    verdict = report["verdict"]
    right = {label["verdict"], *label.get("also_right", ())}
    if verdict in right:
        of_verdict = "right"
    elif verdict in ("inconclusive", "refused"):
        of_verdict = "missed" if label["decidable"] else "undecided"
    else:
        of_verdict = "wrong"
    wanted, named = label.get("culprits", []), report["culprits"]
    if _any_is(named, wanted):
        return of_verdict, "named"
    if named and not _any_is(named, label.get("tolerated", [])):
        return of_verdict, "wrong"
    return of_verdict, "missed" if wanted else "none"


def main(folder: Path) -> None:
    """Print a line for each case that is not right, then the sums."""
    labels: dict[str, _Label] = tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))
    counts: dict[str, int] = {}
    for name, label in labels.items():
        report = _analyze(folder / f"{name}.log")
        verdict, culprit = _judge(label, report)
        for key in (f"verdict {verdict}", f"culprit {culprit}"):
            counts[key] = counts.get(key, 0) + 1
        if verdict == "wrong" and report["verdict"] == "healthy":
            counts["false healthy"] = counts.get("false healthy", 0) + 1
        if verdict not in ("right", "undecided") or culprit in ("missed", "wrong"):
            print(
                f"{name}: verdict {verdict} ({label['verdict']}), culprit {culprit} ({label.get('who', '')}): {report['reason']}"
            )
    verdicts = [counts.get(f"verdict {key}", 0) for key in ("right", "wrong", "missed")]
    culprits = [counts.get(f"culprit {key}", 0) for key in ("named", "missed")]
    wanted = sum(1 for label in labels.values() if label.get("culprits"))
    print(
        f"{len(labels)} cases: verdict {verdicts[0]} of {sum(verdicts)}, wrong {verdicts[1]}; culprit {culprits[0]} of {wanted}, "
        f"wrong {counts.get('culprit wrong', 0)}; false healthy {counts.get('false healthy', 0)}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.strangers FOLDER")
    main(Path(sys.argv[1]))
