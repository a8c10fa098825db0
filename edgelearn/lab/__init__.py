"""The laboratory: run store, charts, benchmarks, profiles and tuning."""
