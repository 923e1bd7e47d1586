"""A simulator of NCCL's log: N ranks, several releases, faults at protocol steps, and the truth about each.

log = generate("fd_answer_lost", "2.27", seed=3)
log.merged(), log.files(), log.truth
"""

from __future__ import annotations

from tests.loggen.dialects import DIALECTS
from tests.loggen.job import Job, Plan
from tests.loggen.scenarios import SCENARIOS, Log, Scenario, Truth, generate, scenario_names
from tests.loggen.sim import Fault

__all__ = ["DIALECTS", "SCENARIOS", "Fault", "Job", "Log", "Plan", "Scenario", "Truth", "generate", "scenario_names"]
