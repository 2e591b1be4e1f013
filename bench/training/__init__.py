"""Models that are trained with our attention: does it learn the same, and how fast?"""
