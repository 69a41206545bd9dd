"""The live view of `jetjobs top`: what is read, what is open, and how it is drawn."""
