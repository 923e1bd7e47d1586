"""Conclusions that several rules share: progress, proof of waiting, cascades of errors, and blame."""
