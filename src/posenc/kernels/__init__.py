"""Machinery that knows tables and positions, and nothing of methods. Imported only when used."""
