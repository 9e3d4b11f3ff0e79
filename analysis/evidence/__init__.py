"""Checks of what is written in documents and in this project. No other room imports this one.

claims/         the source documents' claims, each with the rule by which numbers decide it
ledger/         judges the claims, and writes them as tables and a page
headlines/      headline results of papers, beside what two-core runs say
number_checks/  compares the numbers in texts with the tables that hidden comments name
"""
