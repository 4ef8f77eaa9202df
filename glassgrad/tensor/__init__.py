"""The lazy tensor: sugar that builds graph nodes; nothing runs until a value is read.

`tensor` has the class. Its methods are in rooms by theme, each of which adds to the class of the one before; the table
in docs/architecture.md has them in that order. How things are computed, on nodes, is in `formulas`. The other rooms are
what all of these stand on: how operands meet (`meeting`), the door to the engine (`running`), values from and to Python
(`host`), who gets a gradient (`leaves`), which argument was wrong (`mistakes`).
"""
