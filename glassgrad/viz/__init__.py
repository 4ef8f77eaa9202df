"""The visualizer: a page of a program's graphs, kernels, time and memory. In: what ran. Out: HTML, text, pictures."""
