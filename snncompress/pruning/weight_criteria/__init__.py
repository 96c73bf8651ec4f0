"""What a weight is worth, one file a criterion: ``score(mean, deviation)``; weights with the least go first."""
