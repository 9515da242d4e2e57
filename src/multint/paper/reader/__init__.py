"""§3.5: the attentive reader, which answers questions about a document."""
