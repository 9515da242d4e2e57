"""§3.4: skip-thought vectors, and how well any sentence encoder transfers."""
