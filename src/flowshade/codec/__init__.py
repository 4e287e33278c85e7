"""Channels to network planes, planes and pictures to latents, and latents back to pictures."""
