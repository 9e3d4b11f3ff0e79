"""Checks of what is written: the claims ledger, the headlines of papers, numbers in prose. No other room imports it."""
