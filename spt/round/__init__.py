"""The round: from a deployment to a faster system, its entries and a report (docs/rounds.md)."""
