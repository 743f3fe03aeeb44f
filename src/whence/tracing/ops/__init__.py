"""Operations that are recorded, and how values pass them backward."""
