"""Pictures and pages of explanations: heatmaps over photos, coloured words."""
