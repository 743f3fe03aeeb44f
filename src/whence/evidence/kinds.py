"""Kinds of evidence that a method can declare in `needs`."""

KINDS = {
    "attention": "the attention maps",
    "gradient": "the gradient of the class logit at them",
    "relevance": "the relevance of the class at them",
    "inputs": "the pixels or embeddings",
    "input_gradient": "the gradient at the pixels or embeddings",
    "input_relevance": "the relevance of the pixels or embeddings",
    "hidden": "the hidden states: what enters each block, and what leaves the last",
    "hidden_gradient": "the gradient at them",
    "hidden_relevance": "the relevance of them",
    "value_input": "what the values of each attention are computed from",
    "value_input_gradient": "the gradient there",
    "token_logits": "the logits of the vocabulary at every token",
    "blocks": "the operations around each attention",
    "forwards": "further forward passes",
}
"""The kinds by name, and what each is."""

AT_MAPS = frozenset(("attention", "gradient", "relevance"))
"""Those that are read at the attention maps."""
