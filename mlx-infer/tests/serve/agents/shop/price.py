def price(cents):
    """The price in euros."""
    return cents / 10
