"""What learners start from: `ridgeline lesson NAME --exercise FILE` writes the file of that name."""
