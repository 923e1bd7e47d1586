"""The mutant bank: logs with a known truth, whole, dressed and damaged, and the score of an analysis over them.

python -m tests.bank            judge all cases and write benchmarks/score.md
python -m tests.bank --misses   print each miss, too
python -m tests.bank --show ID  write one case to build/bank and print its report
"""

from __future__ import annotations

from tests.bank.cases import Case, cases, in_sample
from tests.bank.judge import Outcome, judge, judged
from tests.bank.subjects import NEAR, SUBJECTS, Subject, Truth, triggered

__all__ = [
    "NEAR",
    "SUBJECTS",
    "Case",
    "Outcome",
    "Subject",
    "Truth",
    "cases",
    "in_sample",
    "judge",
    "judged",
    "triggered",
]
