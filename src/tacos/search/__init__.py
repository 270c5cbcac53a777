"""Search: find the best schedule for a problem, and compare engines.

:mod:`~tacos.search.synthesis` finds a schedule: ``tacos.search.question`` holds the problem, ``tacos.search.watch`` the
caller's time limit and progress, and ``tacos.search.budget`` the work that may be spent; ``tacos.search.judging``
decides which schedules are correct and which is the fastest; ``tacos.search.chunk_search`` runs one engine with all
chunk counts, and ``tacos.search.auto`` all engines. :mod:`~tacos.search.compare` compares engines,
:mod:`~tacos.search.refine` shortens a schedule, :mod:`~tacos.search.pareto` trades steps for rounds, and
:mod:`~tacos.search.tune` finds the best algorithm for each size.

Nothing here names an engine: what a search must know is in the engine's record (:class:`tacos.synth.engine.Engine`).
"""
