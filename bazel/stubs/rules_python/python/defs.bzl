"""Bazel's own rules under the names that rules_python gives them."""

py_library = native.py_library
py_test = native.py_test
