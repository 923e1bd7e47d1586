"""The transports in Python, p2p within a host and net between hosts: connections, groups, memory, variants. docs/transport_python.md."""

from __future__ import annotations

from psmkit.model.symptoms import Leaves, Shows, Symptoms
from psmkit.transport.ends import P2P, End, Registration, peer_info, recv_setup, send_setup
from psmkit.transport.launch import CopyToSelf, Group, Recv, Send, launch
from psmkit.transport.memory import Buffer, Memory, Raw, copy, synchronize
from psmkit.transport.net import (
    NET,
    NetConnectInfo,
    NetEnd,
    NetVariant,
    connect_net,
    net_recv_setup,
    net_send_setup,
    net_variant,
    net_variants,
)
from psmkit.transport.segments import Segment, prune_segments, segments
from psmkit.transport.types import Capability, ConnectInfo, Mode, PeerInfo, can_connect, find_intermediate
from psmkit.transport.variants import RightConnect, RightSetup, Variant, register_variant, variant, variants

__all__ = [
    "NET",
    "P2P",
    "Buffer",
    "Capability",
    "ConnectInfo",
    "CopyToSelf",
    "End",
    "Group",
    "Leaves",
    "Memory",
    "Mode",
    "NetConnectInfo",
    "NetEnd",
    "NetVariant",
    "PeerInfo",
    "Raw",
    "Recv",
    "Registration",
    "RightConnect",
    "RightSetup",
    "Segment",
    "Send",
    "Shows",
    "Symptoms",
    "Variant",
    "can_connect",
    "connect_net",
    "copy",
    "find_intermediate",
    "launch",
    "net_recv_setup",
    "net_send_setup",
    "net_variant",
    "net_variants",
    "peer_info",
    "prune_segments",
    "recv_setup",
    "register_variant",
    "segments",
    "send_setup",
    "synchronize",
    "variant",
    "variants",
]
