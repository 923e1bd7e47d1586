"""The rules: one module for each kind of finding. Rules never import each other; shared code is in facts or inference."""
