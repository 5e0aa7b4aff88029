"""Token ids -> hidden states -> logits."""
