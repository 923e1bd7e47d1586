"""psmkit.transport: libpsm's p2p transport in Python."""
