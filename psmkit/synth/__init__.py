"""A simulator of NCCL's log: N ranks, several releases, faults at protocol steps, and the truth about each.

log = generate("fd_answer_lost", "2.27", seed=3)
log.merged(), log.files(), log.truth
"""

from __future__ import annotations

from psmkit.synth.dialects import DIALECTS
from psmkit.synth.job import Job, Plan
from psmkit.synth.scenarios import SCENARIOS, Log, Scenario, Truth, generate, scenario_names
from psmkit.synth.sim import Fault

__all__ = ["DIALECTS", "SCENARIOS", "Fault", "Job", "Log", "Plan", "Scenario", "Truth", "generate", "scenario_names"]
