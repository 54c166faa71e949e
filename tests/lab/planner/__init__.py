"""Tests of plan and explain."""
