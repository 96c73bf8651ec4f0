"""What a model costs: weights, multiplications, memory."""
