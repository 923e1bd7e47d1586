"""Names of people and machines in texts: what they look like, and what takes their place."""

from psmkit.names.redactor import Redactor

__all__ = ["Redactor"]
