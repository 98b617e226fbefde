"""Drivers: how a llama-server is started, watched and ended on a host."""
