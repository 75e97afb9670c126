"""Writes answers as HTML: the file that people mail to each other, and the fragments of the served page.

Read `blocks` first: what a view consists of. `markup` renders it, `document` makes files of it, and `gantt_chart` and
`gantt_bars` choose the bars of the interactive pipeline. `report/views` makes the views of each kind of answer.
"""
