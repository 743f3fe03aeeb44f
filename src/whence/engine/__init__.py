"""Runs an explanation: in chunks of a batch, eagerly or compiled."""
