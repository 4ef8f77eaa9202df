"""Renderers, where users of tinygrad look for them; they live in render/."""
