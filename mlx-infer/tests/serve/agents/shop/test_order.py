from order import total

assert total([250, 50]) == 3, total([250, 50])
print('passed')
