"""Serves answers on a page: one process that talks HTTP, and worker processes that compute.

Read `questions` first, which says what can be asked; then `jobs` (what becomes of a question) and `pool` (which worker
does it when). `answering` is what a worker does with one question, `worker` the process around it, `app` the routes.
There are many modules because each guards one border: what is asked, by whom, what is uploaded, what a worker may do.
"""
