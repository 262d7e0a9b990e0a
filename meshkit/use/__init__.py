"""What a trained model is for: evaluate.py measures it on texts, decode.py lets it write."""
