"""Tree policies, which define how draft trees grow. Each declares how it draws siblings, because a
verification rule is exact only for some ways of drawing them.
"""
