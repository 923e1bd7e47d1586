"""The rules: one module a kind of finding. They never import each other; what two of them need stands in facts or inference."""
