"""Models inside other programs. Each module needs the package that it is named for."""
