"""Run the pipeline in copies of the repository and supervise the processes of each run."""
