"""What is learned: from a batch to a loss, and from an input to a prediction."""
