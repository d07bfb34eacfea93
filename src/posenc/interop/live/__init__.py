"""What set_rope needs to know of a live model: its rotary modules, functions and caches."""
