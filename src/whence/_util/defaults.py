"""What is used where a user names nothing. Nothing here imports torch."""

METHOD = "whence"
