"""What the scripts that measure speed share: models, rounds, memory, runs on disk, tables."""
