"""Files that hold models, one file per format. In: untrusted bytes. Out: tensors, or a FormatError."""
