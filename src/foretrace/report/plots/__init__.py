"""Draws plots, as SVG and as text for a terminal.

Read `curves` first (lines on two logarithmic axes), then `scatter` (measured against predicted). `heatmap`
draws how busy links are, which `link_panels` arranges; `network_plot` chooses the curves of collectives;
`gantt` draws a step as letters, `memory_plot` what a stage holds over it.
"""
