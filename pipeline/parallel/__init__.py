"""Map blocks of text over processes of this machine or over a Dask cluster, results in order."""
