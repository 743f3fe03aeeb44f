"""Small models and samples that come with the library, so that it works without a model hub."""
