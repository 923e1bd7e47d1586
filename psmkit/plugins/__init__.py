"""NCCL's plugins: what their ABIs are, and what a library that claims to be one holds."""
