"""Files that hold models, one file per format. In: bytes that nobody vouches for. Out: tensors, or a FormatError."""
