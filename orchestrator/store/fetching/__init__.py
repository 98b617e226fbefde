"""One fetch from within: who brings which bytes, and what of them counts after a kill."""
