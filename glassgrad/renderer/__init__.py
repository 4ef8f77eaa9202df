"""Export renderers under tinygrad's module name; the code is in compiler/render/."""
