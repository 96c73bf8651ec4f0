"""Architectures, a file a family, and the ways to name, build, load and reshape them."""
