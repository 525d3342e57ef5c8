"""Who proposes: what feeds a growing tree with draft logits."""
