"""Training around nmt: torchrun, the state folder, progress."""
