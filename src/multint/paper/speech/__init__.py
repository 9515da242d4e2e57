"""§3.3 Speech recognition: bidirectional MI-LSTM layers, CTC over characters, decoding with a graph of words."""
