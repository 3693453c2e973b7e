"""The data set that ships with the package."""
