"""The built-in model: a small, real vision-language model and the little world that it was trained on.

`world`, `scenes`, `questions`, `phrasings`, `probes` and `samples` need numpy and Pillow only: the world can be drawn
and questioned without torch. `tokenizer`, `packing`, `architecture`, `train`, `export` and `evaluate` make the model.
"""
