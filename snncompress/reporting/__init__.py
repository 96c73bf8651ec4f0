"""Measurements turned into tables and pictures."""
