"""The command at the top of an excerpt names the pod or container that its lines are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

FAILS = "2022/05/13 21:17:40 loading\n2022/05/13 21:17:40 Failed to initialize NVML: could not load the library.\n"


@pytest.mark.parametrize(
    "command",
    [
        "$ kubectl logs worker-q82zt -n gpu",
        "kubectl -n gpu logs pod/worker-q82zt",
        "# docker logs --tail 20 worker-q82zt",
    ],
)
def test_the_pod_of_the_command_is_who_failed(command: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{command}\n{FAILS}")
    assert [c.host for c in report.culprits] == ["worker-q82zt"]


@pytest.mark.parametrize(
    "command", ["$ kubectl logs -l app=worker", "$ kubectl get pods", "see the logs of worker-q82zt"]
)
def test_other_commands_name_nobody(command: str, tmp_path: Path) -> None:
    assert analyzed(tmp_path, f"{command}\n{FAILS}").culprits == ()
