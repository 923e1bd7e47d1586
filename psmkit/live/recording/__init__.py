"""``psmkit record``: starts a command with settings for complete logs, watches its processes, and packs all evidence into one archive.

    agent ──> child, watch, evidence, rest, team ──> journal ──> layout
          └──> archive, settings

The folder of a recording is complete at every moment: what a killed agent leaves can be packed later (:mod:`.archive`).
"""
