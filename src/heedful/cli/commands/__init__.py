"""What each verb takes, and where its work is done. Nothing here imports torch."""
