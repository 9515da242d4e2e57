"""The paper's experiments, §3.1 to §3.5: where data comes from, how models are trained, what was measured."""
