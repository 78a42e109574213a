"""What the trials say about memory: the records of an analysis, and `analyse`.

surrogate   memory as a function of the parameters, fitted
fanova      which share of its variance each parameter explains, against dummies
anova       the classical table, with interactions
mechanism   coefficients in bytes: per parameter, per activation
censoring   trials that were ended, whose peak lies above what was seen
drivers     all of it together, in words
"""
