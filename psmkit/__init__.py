"""psmkit: a debugging toolkit for custom NCCL transports."""
