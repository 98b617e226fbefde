"""GGUF files: read, inspect, graft, extract. No network, no settings."""
