"""Readers of model files, one module per format. In: untrusted bytes. Out: tensors, or a FormatError."""
