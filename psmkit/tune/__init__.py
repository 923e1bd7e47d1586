"""Rules for NCCL's tuner: their decisions, and rules fitted to measurements."""

from psmkit.tune.fit import Best, Fit, Missing, Model, fit, rules_of
from psmkit.tune.measure import ALGORITHMS, OPS, PROTOCOLS, Sample, read_samples
from psmkit.tune.rules import Decision, Query, Rule, Rules, RulesError, decide, read, to_csv, to_toml

__all__ = [
    "ALGORITHMS",
    "OPS",
    "PROTOCOLS",
    "Best",
    "Decision",
    "Fit",
    "Missing",
    "Model",
    "Query",
    "Rule",
    "Rules",
    "RulesError",
    "Sample",
    "decide",
    "fit",
    "read",
    "read_samples",
    "rules_of",
    "to_csv",
    "to_toml",
]
