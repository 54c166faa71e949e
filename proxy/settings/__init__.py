"""The operator's file: read, parsed strictly, defaulted, cross-checked, frozen."""
