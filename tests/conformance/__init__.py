"""transformers' own rotary modules beside posenc's, case by case; used by tests and scripts."""
