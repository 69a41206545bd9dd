"""Flows as values: their headers, ledger entries and plans, and the decisions about them."""
