"""Helpers that several methods share: attention maps, scores at the input, deletion ratings."""
