"""What the recorded graph says of a model's structure."""
