"""The head of an answer of ncclras: the job, and the table of its communicators."""

from __future__ import annotations


def head(rows: str, *, nodes: int = 1, processes: int = 4, took: str = "0.00") -> str:
    """The head with these ``rows``. ``processes`` are those of a node, with a GPU each; ``took`` is in seconds."""
    total = nodes * processes
    return (
        "Job summary\n===========\n\n"
        "  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n"
        f"{nodes:7}{processes:11}{1:13}{total:11}{total:9}\n\n"
        f"Communicators... ({took}s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n" + rows
    )
