"""Facts of a job: identities, connections, exchanges and their order. They are computed once and judge nothing."""
