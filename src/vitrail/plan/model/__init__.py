"""`vitrail.nn` on a tape: each file is the cost of the module in nn's file of the same name."""
