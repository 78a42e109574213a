"""The calculation by hand: layer by layer from shapes, and where it goes wrong. Pure functions.

records      the layer table, what it adds up to, the items of a gap
optimizers   what each optimizer of torch keeps, as formulas
totals       from a layer table to the bytes of training and of inference
gap          formula against trace, the difference itemised
"""
