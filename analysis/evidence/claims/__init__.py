"""The source documents' claims, one file a group of claims; every file here is evidence by itself.

A module has CLAIMS (`analysis.evidence.ledger.entries.Claim`): each with the claim in a sentence, its documents, the
value that they give, the rule in words, and ``judge(evidence)``, which yields numbers with what the claim needs of
them (Check), parts that nothing here can say yet (Lack) and numbers to know beside the verdict (Remark). The verdict
follows from these alone (`analysis.evidence.ledger.rules`). A rule asks for what the document says, at its own sizes
and against its own baseline; what we chose ourselves (a number of terms, a width, what ours is compared with) is
shown and decides nothing, unless the claim is for every choice.
"""
