"""Weights on disk: saving, strict loading and fingerprints."""
