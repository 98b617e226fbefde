"""What Slipstream is measured against, and servers that stand behind all of them."""
