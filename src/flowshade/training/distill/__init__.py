"""Distillation: small codecs from Wan's VAE, and a few-step student with a memory from the many-step teacher.

`clips` finds clips and holds some out, `texts` and `teaching` keep on disk what the teacher's text encoder and its many
steps made, `codec` and `flash` say what is learned, `loop` runs any of it on any number of GPUs and can be killed at
any moment, `scores` measures on held-out clips, `estimate` says beforehand what it will cost, and `run` joins them.
"""
