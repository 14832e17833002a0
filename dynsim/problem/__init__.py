"""Problems, their data, and training by any rule."""
