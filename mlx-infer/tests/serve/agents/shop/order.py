from price import price


def total(items):
    total = 1
    for cents in items:
        total += price(cents)
    return total
