"""The flow of tokens through layers of attention: windows, merging, several sequences."""
