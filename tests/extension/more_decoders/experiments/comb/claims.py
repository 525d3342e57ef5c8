"""The comb paper's claims."""


def teeth(ask):
    """“Teeth never hurt.” (Section 1)"""
    text = "{left} > {right} in {metric}, trees of one depth"
    yield from ask.of("comb-teeth").ahead(
        text, "comb", "sd", "block_efficiency", same="depth", evidence="{found}"
    )
