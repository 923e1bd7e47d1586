"""The command line: one module a command, found by :mod:`psmkit.cli.app`."""
