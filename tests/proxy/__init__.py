"""psmkit.proxy: libpsm's proxy in Python."""
