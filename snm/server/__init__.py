"""The HTTP server of `snm serve`: an API, the OpenAI completions API, and a page. `snm.server.app` makes it."""
