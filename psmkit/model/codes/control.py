"""Codes of the control plane (PSM1xx: proxy calls, fd exchanges, connections) and of the start-up (PSM2xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM101",
        title="proxy call never answered",
        effect=Effect.AS_IT_ENDED,
        precedence=120,
        symptom=True,
        meaning="A rank sent a request to a proxy service (Init, SharedInit, Setup, Connect, Register, Deregister) and received no answer.",
        next_step="Look at the proxy service thread of the process that should have answered: attach gdb, or re-run with NCCL_DEBUG_SUBSYS=INIT,PROXY,P2P,SHM,NET.",
    ),
    Code(
        code="PSM102",
        title="fd exchange stuck",
        effect=Effect.AS_IT_ENDED,
        precedence=130,
        symptom=True,
        meaning="A rank requested a file descriptor over the Unix domain socket, and the exchange did not finish. Its four stages are asked, received, answered and done.",
        next_step="Take the stack of the UDS service thread of the rank that should answer (gdb, function ncclProxyServiceUDS). NCCL_CUMEM_ENABLE=0 avoids the exchange; compare with NVIDIA/nccl#2379.",
    ),
    Code(
        code="PSM103",
        title="connection stuck before its next message",
        effect=Effect.HANGS,
        precedence=110,
        symptom=True,
        meaning="A connection received its Init, but not the next message that its transport and role require, and another rank waits for that message.",
        next_step="Look at the thread that must send the message: read its last line and take its stack to see what it waits for.",
    ),
    Code(
        code="PSM104",
        title="response for no request",
        effect=Effect.FAILS,
        meaning="A proxy response arrived with an opId that no pending request has.",
        next_step="The service answered a request twice, or after the caller dropped it. Check that the service answers each request exactly once.",
    ),
    Code(
        code="PSM105",
        title="sizes differ between the two sides",
        effect=Effect.FAILS,
        meaning="The two ends of an exchange expect different sizes of a message, a buffer or a response.",
        next_step="Compare the NCCL builds and the settings of the ranks that differ.",
    ),
    Code(
        code="PSM106",
        title="foreign client on an NCCL port",
        effect=Effect.HANGS,
        meaning="A client that is not NCCL connected to an NCCL socket. Its first bytes, read as NCCL's magic, show its protocol.",
        next_step="Keep port scanners and metric scrapers away from NCCL's ports (NCCL_SOCKET_IFNAME, firewall).",
    ),
    Code(
        code="PSM107",
        title="proxy request failed",
        effect=Effect.FAILS,
        names_origin=True,
        meaning="A proxy service received a request, and its handler returned an error.",
        next_step="Find the first warning of that process's service thread before this line.",
    ),
    Code(
        code="PSM108",
        title="connection to a peer was closed",
        severity=Severity.WARNING,
        effect=Effect.AS_IT_ENDED,
        loses_peer=True,
        survived=False,
        symptom=True,
        by_text=True,
        meaning="A proxy, bootstrap or RAS peer closed its connection while it was still needed. Look at the side that closed it.",
        next_step="Read the log of the peer that closed the connection: it died or failed first.",
    ),
    Code(
        code="PSM109",
        title="descriptor of another handle",
        effect=Effect.FAILS,
        outlasts_end=True,
        meaning="A rank requested the descriptor of one memory handle and received that of another, so it maps the wrong memory.",
        next_step="Look at the function of the fd service that turns a handle into a descriptor, and at what selects the answer of a client: each answer must stay with its request.",
    ),
    Code(
        code="PSM201",
        title="rank never started",
        effect=Effect.HANGS,
        precedence=40,
        meaning="Fewer ranks started than the communicator has.",
        next_step="Check that this rank's process was launched and called ncclCommInitRank. Read its launcher output.",
    ),
    Code(
        code="PSM202",
        title="rank never finished init",
        effect=Effect.HANGS,
        precedence=30,
        symptom=True,
        meaning="The rank printed Init START and did not print Init COMPLETE.",
        next_step="Find the stage where the rank stopped, and the rank that it waits for.",
    ),
    Code(
        code="PSM203",
        title="bootstrap refused or closed",
        effect=Effect.FAILS,
        names_origin=True,
        loses_peer=True,
        two_ends=True,
        symptom=True,
        by_text=True,
        meaning="The bootstrap network could not connect, or a peer closed it.",
        next_step="Check NCCL_SOCKET_IFNAME, routing and firewalls between the two hosts, and check that the peer is still alive.",
    ),
    Code(
        code="PSM204",
        title="no transport between two ranks",
        effect=Effect.FAILS,
        names_origin=True,
        meaning="NCCL found no transport for a pair of ranks.",
        next_step="Check which of P2P, SHM and network this pair can use. NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET shows why NCCL refused each.",
    ),
)
