"""Buffers, a prompt and the past in; pictures out, window after window."""
