"""Planning a training: size, memory, disk and time, from a sample of the text and short trainings on this machine."""
