"""Training on several machines: tasks that share a folder, and the files that they exchange. See docs/cluster.md."""
