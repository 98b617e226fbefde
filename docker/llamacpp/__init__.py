"""Bring, check, patch and build the pinned llama.cpp. Standard library only: it runs before anything is installed."""
