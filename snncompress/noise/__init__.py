"""Noise branches, a file a method, and the way they are hung on a plain network."""
