"""The rules: one module a kind of finding, each with ``find(job) -> list[Finding]``."""
