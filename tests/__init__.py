"""The house keeps its own rules: tests mirror the packages."""
