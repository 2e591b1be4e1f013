"""Programs that make tables and pictures of results. They measure nothing, and need no GPU."""
