"""The survey: small random models of many families and tasks, and which methods run on them."""
