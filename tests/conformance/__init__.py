"""Every variant of the p2p transport over both hosts: the right one passes, the wrong ones fail as they declare."""
