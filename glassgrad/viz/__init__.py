"""See through a program: a page of its graphs, kernels, time and memory. In: what ran. Out: HTML, text, pictures."""
