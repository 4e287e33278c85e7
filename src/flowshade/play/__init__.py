"""Play: a world in the browser, painted by a prompt. `flowshade play` serves it; `server.serve` is its Python form."""
