"""Files over HTTP: connections, redirects, the token, retries, and what an answer means."""
