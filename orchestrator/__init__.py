"""Slipstream: serve and measure speculative decoding for llama.cpp."""

from importlib.metadata import version

__version__ = version("slipstream")
