"""What several methods share: reading rows, inputs as tokens, chance, ratings."""
