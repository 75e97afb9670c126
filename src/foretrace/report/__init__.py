"""Writes answers for people and for other programs: terminal screens, JSON, pictures as SVG, and pages.

Each module holds the screen and the JSON of one command. Read first the modules that all others use:
`terminal` (styled lines, and the screen of an answer), `wrap` (folds lines to the width of the screen), `table`
(aligned columns), `json` (records to JSON) and `svg` (the canvas of every picture). `plots` draws curves, scatter
plots and maps of links; `profiler_trace` answers questions about profiler traces; `catalogue` prints what can be named
(`foretrace list`, `foretrace show`). `design` defines colours and sizes for all of them. `views` turns answers into
sections of a page, `page` renders these, `web` holds their style and scripts, and `notebook` shows them in notebooks.
`generate` is short and has one importer: it stays here because modules of `cli` hold no output of their own.
"""
