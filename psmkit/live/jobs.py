"""The job that a process belongs to, as its launcher tells it in the environment."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["job_of"]

_JOBS = (
    ("slurm", "SLURM_JOB_ID"),
    ("lsf", "LSB_JOBID"),
    ("pbs", "PBS_JOBID"),
    ("torchrun", "TORCHELASTIC_RUN_ID"),
    ("mpi", "OMPI_MCA_ess_base_jobid"),
    ("mpi", "PMIX_NAMESPACE"),
)
_RANKS = ("PSM_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def job_of(environment: Mapping[str, str]) -> str:
    """``slurm 4711 rank 3``; empty: nothing tells it."""
    name = "psmkit lab" if "PSM_LAB_SOCKET" in environment else _named(environment)
    rank = next((environment[name] for name in _RANKS if environment.get(name)), "")
    return " ".join(part for part in (name, f"rank {rank}" if rank else "") if part)


def _named(environment: Mapping[str, str]) -> str:
    return next((f"{kind} {environment[name]}" for kind, name in _JOBS if environment.get(name)), "")
