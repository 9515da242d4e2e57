"""§3.1 Exploratory experiments: what multiplication does to gradients, activations and scales, on Penn Treebank's characters."""
