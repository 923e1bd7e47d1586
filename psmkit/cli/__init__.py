"""The command line: one module a command, registered in :mod:`psmkit.cli.app`."""
