"""The lab: run what would need GPUs on a machine without one, break it on purpose, and keep the evidence."""
