"""Write the pages and figures of the report."""
