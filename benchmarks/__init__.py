"""Every figure that the README states, each by one command: `make bench`."""
