"""The same models in Hugging Face's transformers, where it has them: Llama, LFM2, and DeepSeek-V3 without experts.

transformers is optional, and imported only when a model's equal there is asked for.
"""
