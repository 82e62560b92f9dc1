"""Short stories, and questions about them."""
