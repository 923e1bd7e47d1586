"""The job of a process is what its launcher says."""

from __future__ import annotations

import pytest

from psmkit.live.jobs import job_of


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "3"}, "slurm 4711 rank 3"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "a", "RANK": "5", "SLURM_PROCID": "0"}, "slurm 4711 rank 5"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "torchrun none"),
        ({"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "prterun-7"}, "mpi prterun-7 rank 1"),
        ({"PSM_LAB_SOCKET": "x", "PSM_RANK": "0", "SLURM_JOB_ID": "1"}, "psmkit lab rank 0"),
        ({"PATH": "/bin", "RANK": ""}, ""),
    ],
)
def test_job_is_named_by_its_launcher(environment: dict[str, str], job: str) -> None:
    assert job_of(environment) == job
