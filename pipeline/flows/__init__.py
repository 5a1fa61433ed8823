"""Run the pipeline with Prefect: flows, short names of deployments, local servers."""
