"""Search: the best schedule for a problem, and engines side by side.

:mod:`~tacos.search.synthesis` picks engine and number of chunks, :mod:`~tacos.search.compare` runs several engines,
:mod:`~tacos.search.refine` shortens a schedule, :mod:`~tacos.search.pareto` weighs steps against rounds, and
:mod:`~tacos.search.tune` finds the best algorithm for each size.
"""
