"""A stand-in for the Hugging Face hub: tiny models and data under the published ids."""
