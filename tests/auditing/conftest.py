"""With this file here, pytest lets the tests in the folders below import this folder's helpers."""
