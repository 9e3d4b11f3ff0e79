"""Text from a trained model: prompts, continuations, speeds."""
