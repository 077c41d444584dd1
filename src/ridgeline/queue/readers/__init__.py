"""Readers of job traces: one file per format, each refusing what it cannot know."""
