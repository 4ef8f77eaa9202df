"""Read model files, with one module per format. In: untrusted bytes. Out: tensors, or a FormatError."""
