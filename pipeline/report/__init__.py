"""Pages and figures of the report."""
