"""What the layers around inference engines print about ends and lost peers: a generated log for each form, with its truth."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from tests.analysis.outside import nccl
from tests.analysis.test_program import steps
from tests.analysis.test_serving import OWN, check, raised

JOB = nccl(0, 1, nranks=2)
TRITON = "E0301 10:00:00.719655 4711 "
STUB = TRITON + "backend_model.cc:719] \"ERROR: Failed to create instance: Stub process 'llm_0_0' is not healthy.\"\n"
LOAD = (
    TRITON
    + "model_lifecycle.cc:654] \"failed to load 'llm' version 1: Internal: Stub process 'llm_0_0' is not healthy.\"\n"
)
DYNAMO = "2026-03-01T10:00:00.123Z {:>5} {}\n"
SERVE = "(ServeController pid=975) WARNING 2026-03-01 10:00:00,123 controller 975 -- {}\n"
REPLICA = "Replica(id='1w2', deployment='LLM', app='chat')"
SILENT = SERVE.format(f"Didn't receive health check response for replica {REPLICA} after 30.0s, marking it unhealthy.")
NIXL = "E0717 07:30:06.719655    4711 nixl_agent.cpp:{}] {}\n"
SLIME = "[{}] /b/dlslime/csrc/engine/rdma/rdma_context.cpp:220: cq_poll_handle: {}\n"
SIDECAR = (
    '{"level":"error","ts":"2026-03-01T10:00:00Z","logger":"proxy server","msg":"prefill request failed","code":502}\n'
)
LOST = DYNAMO.format(
    "WARN", "dynamo_llm::migration: Cannot recreate stream: Migration limit exhausted"
) + DYNAMO.format(
    "ERROR",
    'dynamo_llm::http: Failed to fold chat completions stream: "Stream ended before generation completed"',
)
KSERVE = "    lastFailureInfo:\n      exitCode: 1\n      message: worker ended\n      reason: ModelLoadFailed\n"

# log, verdict, words of the headline
REPORTS = {
    "triton": (STUB + LOAD, "failed", "Python backend for llm_0_0 ended"),
    "triton, client": (
        "tritonclient.utils.InferenceServerException: [400] Failed to process the request(s) for model instance 'llm_0', message: Stub process is not healthy.\n",
        "failed",
        "Python backend for llm_0 ended",
    ),
    "triton, load": (
        LOAD.replace("Stub process 'llm_0_0' is not healthy.", "no such engine"),
        "failed",
        "could not load the model llm",
    ),
    "dynamo health": (
        DYNAMO.format(
            "ERROR", "engine_monitor._check_engine_health: vLLM AsyncLLM health check failed: EngineCore has died"
        ),
        "failed",
        "a worker of Dynamo ended: EngineCore has died",
    ),
    "dynamo start": (
        DYNAMO.format(
            "ERROR",
            "dynamo_runtime::worker: Application shutdown with error: Failed to connect to etcd server with config X",
        ),
        "failed",
        "Failed to connect to etcd",
    ),
    "dynamo frontend": (LOST, "failed", "lost the worker of a request"),
    "ray serve": (
        SERVE.format(f"Actor for {REPLICA} crashed, marking it unhealthy immediately."),
        "failed",
        "replica 1w2 of LLM crash",
    ),
    "ray serve, 2022": (
        SERVE.format("Actor for replica LLM#1w2 crashed, marking it unhealthy immediately."),
        "failed",
        "LLM#1w2 crash",
    ),
    "ray serve, silent": (SILENT, "hung", "replica 1w2 of LLM did not answer Ray Serve's health check for 30 s"),
    "ray serve, start": (
        SERVE.format("The deployment failed to start 3 times in a row. This may be due to a problem"),
        "failed",
        "after 3 failures",
    ),
    "kserve": (KSERVE, "failed", ""),
    "llm-d": (SIDECAR, "failed", "the status 502"),
    "mooncake": (
        TRITON + "worker_pool.cpp:510] Worker: Timed out waiting for RDMA ready ACK for endpoint: 10.0.0.3:15555@mlx5_2, deleting endpoint\n",
        "failed",
        "could not connect to 10.0.0.3",
    ),
    "nixl": (
        NIXL.format(1190, "getXferStatus: remote agent 'dec-0' was disconnected after transfer request creation"),
        "failed",
        "lost the NIXL agent dec-0",
    ),
    "nixl, start": (
        NIXL.format(600, "makeConnection: connect('dec-0') failed on backend 'UCX' with status NIXL_ERR_BACKEND"),
        "failed",
        "dec-0: NIXL_ERR_BACKEND",
    ),
    "dlslime": (
        SLIME.format("ERROR", "WR failed: transport retry counter exceeded, Vendor Err: 129")
        + SLIME.format("ERROR", "WR failed: Work Request Flushed Error, Vendor Err: 249"),
        "failed",
        "transport retry counter exceeded",
    ),
    "dlslime ends": (SLIME.format("Fatal", "Failed to find GID"), "failed", "Failed to find GID"),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_a_layer_that_reports_an_end_decides_the_verdict_and_is_no_culprit(name: str, tmp_path: Path) -> None:
    text, verdict, words = REPORTS[name]
    # a connection that failed has two ends, and the address is one of them
    check(tmp_path, text, verdict, None, "10.0.0.3" if name == "mooncake" else None, None)
    assert words in psmkit.analyze([str(tmp_path / "job.log")]).reason


@pytest.mark.parametrize(
    "report", [STUB + LOAD, LOST, SILENT, SIDECAR, REPORTS["ray serve"][0], REPORTS["dynamo health"][0]]
)
def test_an_exception_of_a_worker_says_more_than_the_layers_above_it(report: str, tmp_path: Path) -> None:
    check(tmp_path, raised("(Worker_TP1 pid=903) ", OWN) + report, "failed", 1, None, None)


# What the same programs print in a run that goes on.
USUAL = {
    "triton": 'I0301 10:00:00.719655 4711 stub_launcher.cc:385] "Starting Python backend stub: exec stub llm_0_0"\nI0301 10:00:00.719655 4711 model_lifecycle.cc:654] "successfully loaded \'llm\'"\n',
    "dynamo": DYNAMO.format("WARN", "dynamo_llm::migration: Stream disconnected... recreating stream..."),
    "ray serve": SERVE.format(f"{REPLICA} started successfully on node 'ab'. Health check for {REPLICA} is due"),
    "kserve": "    states:\n      activeModelState: Loaded\n      targetModelState: Loaded\n",
    "llm-d": '{"level":"info","ts":1,"logger":"proxy server","msg":"prefill request done","code":200}\n',
    "mooncake": "W0301 10:00:00.719655 4711 worker_pool.cpp:477] Worker: Cannot make connection for endpoint: 10.0.0.3:15555@mlx5_2, pausing peer rail and retrying through an alternate peer RNIC\n",
    "dlslime": SLIME.format("INFO", "RDMA context is ready"),
}


@pytest.mark.parametrize("name", USUAL)
def test_what_the_same_programs_print_usually_is_no_failure(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(JOB + USUAL[name])
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert report.verdict in ("inconclusive", "healthy") and report.culprits == ()


@pytest.mark.parametrize("name", [n for n in REPORTS if n != "kserve"])
def test_a_report_of_a_job_that_works_on_decides_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(JOB + REPORTS[name][0] + steps(1, 9))
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict in ("inconclusive", "healthy")
