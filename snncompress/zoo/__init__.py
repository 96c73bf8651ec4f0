"""The model zoo: recipes that lead to a result, the result where it is small, and its figures."""
