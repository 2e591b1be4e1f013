"""What the stages share. In Python it is the package course alone; python/ is the module flashladder."""
