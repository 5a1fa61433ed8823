"""Prefect: the flows, short names of deployments, local servers."""
