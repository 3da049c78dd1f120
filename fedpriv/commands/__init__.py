"""The library's own commands: what people type, and how it is shown."""
