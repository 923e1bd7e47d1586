"""Looks at processes that run now, and at the machine they run on: threads, stacks, state in memory, what may be traced.

Nothing here judges a job: what it finds becomes an :class:`~psmkit.model.inspection.Inspection` or a file that ``psmkit analyze`` reads.
"""
