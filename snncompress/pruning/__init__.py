"""Removal of neurons: dead ones in one batch, then the least important one after the other."""
