"""The simulator of psmkit.synth as tests take it, and logs in shapes that only they need.

log = generate("fd_answer_lost", "2.27", seed=3)
log.merged(), log.files(), log.truth
"""

from __future__ import annotations

from psmkit.synth import DIALECTS, SCENARIOS, Fault, Job, Log, Plan, Scenario, Truth, generate, scenario_names

__all__ = ["DIALECTS", "SCENARIOS", "Fault", "Job", "Log", "Plan", "Scenario", "Truth", "generate", "scenario_names"]
