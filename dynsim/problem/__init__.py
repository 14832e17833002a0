"""What is learned, and its training by any rule."""
