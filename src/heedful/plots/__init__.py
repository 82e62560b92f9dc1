"""Pictures of numbers and images."""
