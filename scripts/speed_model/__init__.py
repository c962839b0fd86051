"""How fast compiled CUDA kernels should be on a card, from their machine code and the card's published limits."""
