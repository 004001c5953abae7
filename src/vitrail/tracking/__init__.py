"""Any module's step on fake tensors, every storage followed: the memory it would take, without taking it."""
