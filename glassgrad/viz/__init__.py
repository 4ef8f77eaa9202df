"""Show a program's graphs, kernels, time and memory on a page: the visualizer. In: what ran. Out: HTML, text, pictures.
"""
