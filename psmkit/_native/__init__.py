"""The native modules. Each is imported in one place only."""
