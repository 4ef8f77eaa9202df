"""Files that hold models, one room per format. In: bytes that nobody vouches for. Out: tensors, or a FormatError."""
