"""The modules of `vitrail.nn` on a tape: each file has the cost of the modules in nn's file of the same name."""
