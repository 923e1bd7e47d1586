"""Results other than findings: the table of operations and the comparison of two jobs."""
