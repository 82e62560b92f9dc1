"""Running text and documents."""
