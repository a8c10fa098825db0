"""Federated learning: many devices, one model, every byte counted."""
