"""The compact deterministic model in other programs' formats, checked against torch."""
