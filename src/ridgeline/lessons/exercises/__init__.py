"""What learners start from: `ridgeline lesson NAME --exercise FILE` writes that file."""
