"""Models of SNM inside other packages: thin classes, each imported only where its package is installed."""
