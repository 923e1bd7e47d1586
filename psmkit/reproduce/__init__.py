"""From evidence to a scenario: the operations of a job that hung, as a case that libpsm's simulator and lab run without a GPU.

See docs/reproduce.md.
"""
