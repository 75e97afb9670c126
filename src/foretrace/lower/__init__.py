"""Records to a program: what the rows of a file mean. One package for each kind of input."""
