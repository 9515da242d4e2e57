"""§3.2 Character-level language modelling: Penn Treebank, text8 and Hutter's enwik8."""
