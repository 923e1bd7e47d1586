"""The example notebook runs, and shows what it shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "query" / "hang.ipynb"


def shown(notebook: Any) -> list[Any]:
    """What the cells show: psmkit's HTML and printed text. How pandas draws a frame differs by its version."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [
        output.get("text") or output["data"].get("text/html")
        for output in outputs
        if "dataframe" not in output.get("data", {}).get("text/html", "")
    ]


def test_the_example_notebook_runs_and_shows_what_it_shows() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    run = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        run, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()
    if os.environ.get("PSMKIT_UPDATE_GOLDEN"):
        for cell in run.cells:
            cell.metadata.pop("execution", None)  # when it ran
        nbformat.write(run, NOTEBOOK)
        return
    assert shown(run) == shown(stored), "to renew it, run this test with PSMKIT_UPDATE_GOLDEN=1"
    frames = [o for cell in run.cells if cell.cell_type == "code" for o in cell.outputs if "dataframe" in str(o)]
    assert len(frames) == 2
