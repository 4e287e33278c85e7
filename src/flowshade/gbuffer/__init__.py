"""G-buffers: tracing them, looking at them, reading and writing them."""
