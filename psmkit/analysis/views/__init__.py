"""Products for people that are no findings: the table of operations, the comparison of two jobs."""
