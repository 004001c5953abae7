"""Learning: recipes as data, a loop to read in one sitting, and runs that resume bit for bit."""
