"""What was measured, a folder for each machine, and how its files are read and written. Imports no other room."""
