"""The frameworks edgelearn is measured beside. Each module is imported in its worker process only."""
