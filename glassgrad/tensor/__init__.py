"""The lazy tensor: sugar that builds graph nodes; nothing runs until somebody looks."""
