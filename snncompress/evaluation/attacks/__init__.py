"""Attacks: small changes of images that make a network err. One file an attack, with its equation."""
