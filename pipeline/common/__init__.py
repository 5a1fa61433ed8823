"""Share what every stage needs: paths, the schema of the configuration, the tracker, the state root, JSON files."""
