"""A small driving stack: scenes and cameras, a network that sees, and what acts on what is seen.

Everything is in the ego frame (x forward, y left, z up; metres, seconds, radians) unless a name
says otherwise. Start reading at `cameras.py`; `../baseline.py` joins the stages into a pipeline.
"""
