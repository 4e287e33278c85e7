"""Video to G-buffers: the way back."""
