"""A server for trained models: predictions of every task, and completions and embeddings as OpenAI's API has them."""
