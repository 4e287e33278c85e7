"""Judging inverse results without references: by a vision-language model, and by consistency measures of our own.

`clips` finds footage and results, `layout` draws them as one grid, `protocol` says what is asked and how answers are
read, `client` and `local` ask, `answers` keeps what was answered, `run` joins these, `statistics` and `agreement` judge
the judge, `report` writes. `consistency` needs no judge. See docs/vlm.md.
"""
