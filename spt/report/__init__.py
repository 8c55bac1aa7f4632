"""The report of rounds: what their journals, the ledger of verdicts and the raw samples say, on one page.

    journals -> events -> story -> charts, page, summary
    evidence, cards -> transfer ----^

Nothing here measures or judges, and no figure is better than the ledger makes it (`spt/ratio.py`).
"""
