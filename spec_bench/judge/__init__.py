"""A language model as judge of the answers to MT-bench: Zheng et al., 2023, arXiv:2306.05685.

Single-answer grading (section 3.1), each turn from 1 to 10. Knows answers as texts and an endpoint
that speaks OpenAI's chat completions; nothing about who decoded them or how.
"""
