"""The file formats that publishers use."""
