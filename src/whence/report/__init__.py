"""The report: many explained inputs on one page, with maps, classes, faithfulness and settings."""
