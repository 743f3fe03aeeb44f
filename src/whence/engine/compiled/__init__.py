"""Compiled explanations, behind a wall: nothing else imports this but the engine."""
