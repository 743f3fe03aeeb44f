"""Many inputs on one page that can be sent to someone: maps, classes, faithfulness, settings."""
